import asyncio
from collections.abc import Callable

import pytest

from acs.platform.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def settle():
    """Lets everything on the loop that can go on, go on."""

    async def run() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    return run


@pytest.fixture
def until():
    """Waits for a fact, 10 s at most: for work that another thread or process does."""

    async def run(fact: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not fact():  # noqa: ASYNC110 - another thread makes it true
                await asyncio.sleep(0.001)

    return run
