"""The folder named `platform` and the package made of links: what must stay true for both to work."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("events", "storage", "platform", "serve_apps")
MADE = shutil.ignore_patterns("__pycache__", "*.pyc")


def python(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True)


def test_the_wheel_holds_every_module_and_data_file_of_the_rooms(tmp_path: Path) -> None:
    """From a copy, so that a build leaves nothing in the tree; offline, by the hatchling that is installed."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("acs", *ROOMS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=MADE)
    for name in ("pyproject.toml", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    built = python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=copy)
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = set(wheel.namelist())
    wanted = {f"acs/{path.relative_to(copy)}" for room in ROOMS for path in (copy / room).rglob("*") if path.is_file()}
    assert wanted - held == set()
    assert any(name.endswith(".toml") for name in wanted)


def test_a_room_cannot_be_imported_under_a_second_name() -> None:
    for room in ("events", "storage", "serve_apps"):
        done = python("-c", f"import {room}")
        assert done.returncode != 0
        assert f"import acs.{room}, not {room}" in done.stderr


def test_no_room_has_a_module_named_like_one_of_pythons_at_its_top() -> None:
    """`python platform/x.py` puts the folder first on the path."""
    named = {path.stem for room in ROOMS for path in (ROOT / room).glob("*.py")} - {"__init__"}
    assert named & sys.stdlib_module_names == set()


def test_the_links_lead_to_the_rooms() -> None:
    for room in ROOMS:
        link = ROOT / "acs" / room
        assert link.is_symlink()
        assert link.resolve() == ROOT / room
