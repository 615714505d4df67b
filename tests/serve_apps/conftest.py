import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import api_client


@pytest.fixture
async def api(toy_checkpoint):
    async with api_client.running_api(toy_checkpoint) as api:
        yield api
