"""Checkpoints on disk: prepared once, whole or not at all, and known by their checksums.

    models/<name>/            a prepared checkpoint: its files and acs.json (source, versions, sizes, SHA-256)
    models/.<name>.partial-*  a preparation under way, or what a killed one left: swept by the next
    models/.<name>.lock       held by whoever prepares

A folder counts as prepared when acs.json lies in it, which is written last, before the folder is renamed into place.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acs.platform.catalogue import Model
from acs.platform.model_source import address
from acs.platform.model_source.child import BuildFailed, build

Say = Callable[[str], None]
Build = Callable[[str, Path, Say], dict[str, str]]

MANIFEST = "acs.json"
NEEDED = ("config.json", "tokenizer.json", "*.safetensors")


class ModelError(Exception):
    """The model cannot be prepared or used; the message is one sentence for the operator."""


def prepare(model: Model, models_dir: Path, say: Say, *, verify: bool = False, build: Build = build) -> Path:
    """The checkpoint folder, made first if need be. Prepared already: milliseconds, no network, no torch.

    `say` is told each step. With `verify` every file is hashed, not only measured. A damaged folder is made anew.
    Raises ModelError.
    """
    folder = model.checkpoint(models_dir)
    if isinstance(model.address, address.Folder):
        if faults := faults_of(model, models_dir):
            raise ModelError(f"Model {model.id}: the folder {folder} cannot be used: {faults[0]}.")
        return folder
    try:
        faults = faults_of(model, models_dir, verify=verify)
        if not faults:
            return folder
        models_dir.mkdir(parents=True, exist_ok=True)
        with _lock(models_dir / f".{folder.name}.lock", lambda: say(f"{model.id}: another process is preparing it")):
            faults = faults_of(model, models_dir, verify=verify)
            if faults and folder.exists():
                say(f"{model.id}: {faults[0]}; preparing it again")
            if faults:
                _make(model, folder, say, build)
        return folder
    except OSError as error:
        raise ModelError(f"Model {model.id} cannot be prepared in {models_dir}: {error.strerror}.") from error


def faults_of(model: Model, models_dir: Path, *, verify: bool = False) -> list[str]:
    """What is wrong with the prepared folder, each half a sentence; an empty list: it can be used."""
    folder = model.checkpoint(models_dir)
    if isinstance(model.address, address.Folder):
        return [f"it holds no {pattern}" for pattern in NEEDED if not any(folder.glob(pattern))]
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        files: dict[str, dict[str, Any]] = manifest["files"]
    except FileNotFoundError:
        return ["it is not prepared"]
    except (ValueError, KeyError, TypeError):
        return [f"{MANIFEST} is damaged"]
    return [fault for name, entry in files.items() if (fault := _fault_of(folder / name, entry, verify))]


def _fault_of(path: Path, entry: dict[str, Any], verify: bool) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != entry["bytes"]:
        return f"{path.name} is damaged ({path.stat().st_size} bytes, not {entry['bytes']})"
    if verify and _sha256(path) != entry["sha256"]:
        return f"{path.name} is damaged (its SHA-256 is not that of {MANIFEST})"
    return None


def _make(model: Model, folder: Path, say: Say, build: Build) -> None:
    for leftover in folder.parent.glob(f".{folder.name}.partial-*"):  # ours alone: we hold the lock
        shutil.rmtree(leftover)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.partial-"))
    try:
        made = partial / "new"
        made.mkdir()
        try:
            versions = build(model.source, made, lambda line: say(f"{model.id}: {line}"))
        except BuildFailed as failure:
            raise ModelError(f"Model {model.id} cannot be prepared: {failure}.") from None
        missing = [pattern for pattern in NEEDED if not any(made.glob(pattern))]
        if missing:
            raise ModelError(f"Model {model.id} cannot be prepared: its source gave no {missing[0]}.")
        _seal(made, model.source, versions)
        if folder.exists():  # damaged; a server that has it open keeps its files
            folder.rename(partial / "old")
        made.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    say(f"{model.id}: prepared")


def _seal(made: Path, source: str, versions: dict[str, str]) -> None:
    """Everything on the disk for good, the manifest last."""
    paths = sorted(path for path in made.rglob("*") if path.is_file())
    files = {}
    for path in paths:
        path.chmod(0o644)
        _sync(path)
        files[str(path.relative_to(made))] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    manifest = {"source": source, "made_with": versions, "files": files}
    (made / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    _sync(made / MANIFEST)
    _sync(made)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Held by one process at a time; the kernel frees it when that process ends, however it ends."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
