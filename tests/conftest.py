"""Fixtures that more than one room uses."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from server.running import Server, start_server
from xdist.scheduler import LoadFileScheduling

from acs.platform.catalogue import Catalogue
from acs.platform.models import prepare
from acs.platform.settings import SHIPPED_CATALOGUES


class InTurn(LoadFileScheduling):  # type: ignore[misc]
    """`make test` runs two processes. One has all tests with a real engine, one server or engine at a time, since two
    would starve each other on two cores; the other has the rest, file by file.
    """

    ENGINES = (
        "tests/docs/",
        "tests/engine/",
        *(
            f"tests/server/test_{name}"
            for name in ("activations", "hang_ups", "harvests", "kills", "looms", "offline", "real")
        ),
    )

    def _split_scope(self, nodeid: str) -> str:
        return "engines" if nodeid.startswith(self.ENGINES) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> InTurn:
    return InTurn(config, log)


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """What a module sets stays in it: vLLM, started in this process, preloads libraries into every later child."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """Prepared checkpoints, kept between runs: preparing is idempotent and checked, and it takes a while."""
    return Path(os.environ.get("ACS_TEST_MODELS", Path(tempfile.gettempdir()) / "acs-test-models"))


@pytest.fixture(scope="session")
def toy_checkpoint(models_dir) -> Path:
    return prepare(Catalogue.load(SHIPPED_CATALOGUES / "toy.toml")["toy"], models_dir, print)


@pytest.fixture(scope="session")
def server(models_dir, tmp_path_factory) -> Iterator[Server]:
    """A running server with the default model and the toy, for tests that leave it as well as they found it."""
    folder = tmp_path_factory.mktemp("server")
    entries = [(SHIPPED_CATALOGUES / f"{name}.toml").read_text() for name in ("default", "toy")]
    catalogue = folder / "two.toml"
    catalogue.write_text("".join(entries))
    with start_server(folder / "data", catalogue=str(catalogue), env={"ACS_MODELS": str(models_dir)}) as running:
        yield running
