"""Where this server keeps its data and how it is reached: read once from the environment, then passed on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from acs.platform.limits import Limits

SHIPPED_CATALOGUES = Path(__file__).parent / "catalogues"


class SettingsError(ValueError):
    """A variable of the environment has a value that cannot be used; the message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Paths are absolute, so that they mean the same in every process."""

    data: Path  # event store, views, blobs, models
    host: str
    port: int
    catalogue: Path  # a TOML file
    ingress_replicas: int
    limits: Limits

    @property
    def models_dir(self) -> Path:
        return self.data / "models"

    @property
    def env_file(self) -> Path:
        return self.data / "env"

    @property
    def admin_socket(self) -> Path:
        return self.data / "admin.sock"

    @property
    def event_store(self) -> Path:
        return self.data / "events.sqlite"

    @property
    def run_dir(self) -> Path:
        """Files of one run: tokens, HAProxy's configuration, logs. Nothing in it must outlive the server."""
        return self.data / "run"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Raises SettingsError with one sentence that names the variable."""
        env = os.environ if environ is None else environ
        catalogue = env.get("ACS_CATALOGUE", "default")
        shipped = SHIPPED_CATALOGUES / f"{catalogue}.toml"
        try:
            limits = Limits.from_environ(env)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        return cls(
            data=Path(env.get("ACS_DATA", ".acs")).expanduser().resolve(),
            host=env.get("ACS_HOST", "127.0.0.1"),
            port=_integer(env, "ACS_PORT", 8000, 1, 65_535),
            catalogue=shipped if shipped.exists() else Path(catalogue).expanduser().resolve(),
            ingress_replicas=_integer(env, "ACS_INGRESS_REPLICAS", 1, 1, 1000),
            limits=limits,
        )


def _integer(env: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = env.get(name, str(default))
    if not text.isdecimal() or not low <= int(text) <= high:
        raise SettingsError(f"{name}={text!r} is not a whole number from {low} to {high}.")
    return int(text)
