"""Which models there are: a TOML file, read once and checked wholly, so that no later part meets a surprise.

The shipped files in `catalogues/` show every field. Importing this module is cheap: every process has a use for it.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from acs.events.hold import Price
from acs.platform.model_source import address
from acs.platform.toml_table import Table, TableError

EngineClass = Literal["vllm", "fake"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")

PREPARATION = 1  # raised when a change to `model_source` must make every checkpoint anew

_REFUSED_ENGINE_ARGUMENTS = {
    "trust_remote_code": "no model's own code is ever run",
    "worker_cls": "the platform's to choose",
    "worker_extension_cls": "the platform's to choose",
    "model": "given by source",
    "tokenizer": "given by source",
    "served_model_name": "a field of the entry itself",
    "tensor_parallel_size": "a field of resources",
    "pipeline_parallel_size": "a field of resources",
}


class CatalogueError(ValueError):
    """The catalogue cannot be used; the message is one sentence that names file, entry and field."""


@dataclass(frozen=True, slots=True)
class Replicas:
    min: int = 1  # 0: the model may go cold
    max: int = 1
    target_ongoing: int = 32  # running requests a replica, above which Serve adds one


@dataclass(frozen=True, slots=True)
class Resources:
    """What one replica asks of Ray."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1


@dataclass(frozen=True, slots=True)
class Model:
    id: str  # what a request's `model` says
    served_model_name: str  # the checkpoint's name: what an answer's `model` says
    description: str
    source: str  # see `model_source/address.py`; a folder's path is absolute here
    created: int  # Unix seconds
    owned_by: str
    engine: Mapping[str, Any]  # vLLM's engine arguments, passed on as they are
    env: Mapping[str, str]  # the replica's environment
    engine_class: EngineClass
    replicas: Replicas
    resources: Resources
    price: Price
    activations: bool  # captures and steering are promised: a replica that cannot keep this does not start

    @property
    def slots(self) -> int:
        """Requests that may run at once, over all replicas."""
        return self.replicas.max * self.replicas.target_ongoing

    @property
    def address(self) -> address.Address:
        return address.parse(self.source)

    def checkpoint(self, models_dir: Path) -> Path:
        """The folder with config.json, tokenizer.json and *.safetensors, whether prepared yet or not.

        Named by the source, so that another source under the same id is another folder.
        """
        where = self.address
        if isinstance(where, address.Folder):
            return where.path
        digest = hashlib.sha256(f"{PREPARATION} {self.source}".encode()).hexdigest()[:8]
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", self.source)[:60].strip("-.")
        return models_dir / f"{readable}-{digest}"


class Catalogue(dict[str, Model]):
    """Model by id, in the order of the file. Nobody changes it once it is loaded."""

    @classmethod
    def load(cls, path: Path) -> Catalogue:
        """Raises CatalogueError."""
        try:
            with open(path, "rb") as file:
                content = tomllib.load(file)
        except OSError as error:
            raise CatalogueError(f"The catalogue {path} cannot be read: {error.strerror}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CatalogueError(f"The catalogue {path} is not TOML: {error}.") from None
        try:
            return cls(_models(content, path))
        except TableError as error:
            raise CatalogueError(str(error)) from None


def _models(content: dict[str, Any], path: Path) -> dict[str, Model]:
    top = Table(content, str(path))
    entries = top.table("models")
    top.end()
    if not entries.left:
        raise top.fault("it names no model; an entry begins with [models.<id>]")
    return {model_id: _model(model_id, entries.table(model_id), path) for model_id in list(entries.left)}


def _model(model_id: str, entry: Table, path: Path) -> Model:
    if not _ID.fullmatch(model_id):
        raise entry.fault("an id has 1 to 64 letters, digits, dots, dashes and underscores")
    replicas = _numbers(Replicas, entry.table("replicas"), floor={"min": 0})
    if replicas.max < replicas.min:
        raise entry.fault(f"replicas.max is {replicas.max}, below replicas.min, {replicas.min}")
    model = Model(
        id=model_id,
        served_model_name=entry.take("served_model_name", str),
        description=entry.take("description", str),
        source=_source(entry, path),
        created=entry.take("created", int),
        owned_by=entry.take("owned_by", str),
        engine=_engine(entry.table("engine")),
        env=_env(entry.table("env")),
        engine_class=_engine_class(entry),
        replicas=replicas,
        resources=_numbers(Resources, entry.table("resources"), floor={"num_cpus": 0, "num_gpus": 0}),
        price=_numbers(Price, entry.table("price"), floor=dict.fromkeys(Price.__dataclass_fields__, 0)),
        activations=entry.take("activations", bool, default=False),
    )
    entry.end()
    if model.activations and model.engine_class == "vllm":
        _check_activations(model, entry)
    return model


def _check_activations(model: Model, entry: Table) -> None:
    """What the tap needs. That it reads this very model right is each replica's own test, at its start."""
    if model.engine.get("enforce_eager") is not True:
        raise entry.fault("activations need engine.enforce_eager = true (a compiled model cannot be tapped)")
    if model.engine.get("dtype") not in ("float32", "bfloat16"):
        raise entry.fault('activations need engine.dtype = "float32" or "bfloat16"')
    if model.resources.pipeline_parallel_size > 1:
        raise entry.fault("activations need resources.pipeline_parallel_size = 1 (each stage has but its own Layers)")


def _source(entry: Table, path: Path) -> str:
    source: str = entry.take("source", str)
    try:
        where = address.parse(source)
    except ValueError as error:
        raise entry.fault(f"source {source!r} {error}") from None
    if isinstance(where, address.Folder):
        return f"folder:{(path.parent / where.path).resolve()}"
    return source


def _engine(table: Table) -> dict[str, Any]:
    for name, why in _REFUSED_ENGINE_ARGUMENTS.items():
        if name in table.left:
            raise table.fault(f"{name} is refused ({why})")
    return dict(table.left)


def _env(table: Table) -> dict[str, str]:
    for name, value in table.left.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(value, str):
            raise table.fault(f"{name} must be an environment variable's name in capitals, its value a string")
    return dict(table.left)


def _engine_class(entry: Table) -> EngineClass:
    given = entry.take("engine_class", str, default="vllm")
    if given not in get_args(EngineClass):
        raise entry.fault(f'engine_class is {given!r}, neither "vllm" nor "fake"')
    return cast(EngineClass, given)


_Numbers = TypeVar("_Numbers", Replicas, Resources, Price)


def _numbers(cls: type[_Numbers], table: Table, floor: dict[str, int]) -> _Numbers:
    """A dataclass of numbers: whole unless the field is a float, at least 1 unless `floor` says otherwise."""
    given = {}
    for field in fields(cls):
        whole = isinstance(field.default, int)
        value = table.take(field.name, int if whole else float, default=field.default)
        low = floor.get(field.name, 1)
        if value < low:
            raise table.fault(f"{field.name} is {value}, below {low}")
        given[field.name] = value
    table.end()
    return cls(**given)
