from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from acs.platform.catalogue import Catalogue
from acs.platform.server import memory, preflight
from acs.platform.server.faults import ServerFault
from acs.platform.settings import SHIPPED_CATALOGUES, Settings


def test_the_data_folder_is_its_owners_alone(tmp_path: Path) -> None:
    settings = Settings.from_environ({"ACS_DATA": str(tmp_path / "new" / "data")})
    preflight.make_data_folder(settings)
    assert stat.S_IMODE(settings.data.stat().st_mode) == 0o700


def test_a_data_folder_that_cannot_be_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerFault, match=re.escape(str(tmp_path / "file"))):
        preflight.make_data_folder(Settings.from_environ({"ACS_DATA": str(tmp_path / "file")}))


def test_a_child_process_does_not_hold_the_lock(tmp_path: Path) -> None:
    """Or an orphan would keep its data folder shut for ever."""
    settings = Settings.from_environ({"ACS_DATA": str(tmp_path)})
    command = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]
    with preflight.sole_server(settings):
        child = subprocess.Popen(command, close_fds=False, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
    with preflight.sole_server(settings):
        assert child.poll() is None
    child.communicate()


def test_another_process_that_holds_the_lock_is_named(tmp_path: Path) -> None:
    settings = Settings.from_environ({"ACS_DATA": str(tmp_path)})
    code = (
        "import sys\nfrom acs.platform.server import preflight\nfrom acs.platform.settings import Settings\n"
        "with preflight.sole_server(Settings.from_environ()):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"ACS_DATA": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ServerFault, match=rf"process {holder.pid}\b"), preflight.sole_server(settings):
        pass
    holder.communicate()
    with preflight.sole_server(settings):
        pass


def test_too_little_memory_is_a_sentence_with_both_figures() -> None:
    preflight.memory_suffices(4_000_000_000, 4_000_000_000)
    with pytest.raises(ServerFault, match=r"4\.0 GB .* 1\.0 GB"):
        preflight.memory_suffices(4_000_000_000, 1_000_000_000)


def test_memory_is_reckoned_for_the_replicas_that_start(tmp_path: Path) -> None:
    total = 8_000_000_000

    def needed(name: str) -> int:
        return memory.needed_bytes(Catalogue.load(SHIPPED_CATALOGUES / f"{name}.toml"), tmp_path, total)

    assert needed("fake") < needed("toy")
    checkpoint = Catalogue.load(SHIPPED_CATALOGUES / "toy.toml")["toy"].checkpoint(tmp_path)
    before = needed("toy")
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(bytes(1000))
    assert needed("toy") == before + 1000


def test_a_bucket_without_keys_is_a_sentence() -> None:
    settings = Settings.from_environ({"ACS_HARVESTS": "s3://bucket/acs"})
    with pytest.raises(ServerFault, match="AWS_SECRET_ACCESS_KEY"):
        preflight.bucket_has_keys(settings, {"AWS_ACCESS_KEY_ID": "an-id"})
    preflight.bucket_has_keys(settings, {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-secret"})
    preflight.bucket_has_keys(Settings.from_environ({}), {})
