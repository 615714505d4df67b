"""Which room may import which, read from the source of every file."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("events", "storage", "platform", "serve_apps")
MAY_IMPORT = {
    "events": {"events"},
    "storage": {"storage", "events"},
    "platform": {"platform", "storage", "events"},
    "serve_apps": {"serve_apps", "platform", "storage", "events"},
}
# A model replica carries no ledger: of the platform it knows the seam and what describes a model.
REPLICA = ROOT / "serve_apps" / "inference"
REPLICA_MAY_IMPORT = {
    "acs.platform.inference",
    "acs.platform.errors",
    "acs.platform.settings",
    "acs.platform.limits",
    "acs.platform.catalogue",
    "acs.platform.tokenizer",
}


def files(room):
    return [path for path in sorted((ROOT / room).rglob("*.py")) if "__pycache__" not in path.parts]


def imports(path):
    """Every module that a file names in an import, wherever in the file; `from a import b` counts as `a.b`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively: say acs.…"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def ours(path):
    return [name for name in imports(path) if name.split(".")[0] == "acs"]


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room):
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(room)
        for name in ours(path)
        if name.count(".") >= 1 and name.split(".")[1] in ROOMS and name.split(".")[1] not in MAY_IMPORT[room]
    ]
    assert wrong == []


def test_a_model_replica_knows_of_the_platform_only_the_seam_and_what_describes_a_model():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files("serve_apps")
        if path.is_relative_to(REPLICA)
        for name in ours(path)
        if name.startswith(("acs.platform.", "acs.storage.", "acs.events.", "acs.serve_apps.api."))
        and ".".join(name.split(".")[:3]) not in REPLICA_MAY_IMPORT
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_imported_under_one_name_only(room):
    roots = {name.split(".")[0] for path in files(room) for name in imports(path)}
    assert not roots & {"events", "storage", "serve_apps"}


def python(program):
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)


def test_the_standard_module_platform_is_not_shadowed_in_the_root():
    assert not (ROOT / "platform" / "__init__.py").exists()
    ran = python("import platform; print(platform.system(), platform.__file__)")
    assert ran.returncode == 0, ran.stderr
    assert str(ROOT) not in ran.stdout


def test_importing_the_rooms_of_events_opens_and_loads_nothing_of_ours_beside_them():
    ran = python(
        "import acs.events.account, acs.events.api_key, sys; print([m for m in sys.modules if m[:4] == 'acs.'])"
    )
    assert ran.returncode == 0, ran.stderr
    assert "acs.platform" not in ran.stdout
    assert "acs.storage" not in ran.stdout
