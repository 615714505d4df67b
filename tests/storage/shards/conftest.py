import pytest

from acs.storage.shards.store import Store


@pytest.fixture
def store(tmp_path):
    return Store.at(str(tmp_path / "hrv_1"))
