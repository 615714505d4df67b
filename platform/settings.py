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
    models: Path | None = None  # checkpoints, if not in the data folder: several servers may share them
    stop_grace_s: float = 3.0  # how long running requests may go on after a signal to stop
    metrics_host: str = "127.0.0.1"  # where HAProxy's metrics and statistics listen
    ray_address: str | None = None  # a Ray cluster to join; None: start one for this server
    harvests: str | None = None  # where their files go, if not in the data folder: a path, or s3://bucket/prefix
    public: str | None = None  # where clients reach this server, if that is not where it listens

    @property
    def models_dir(self) -> Path:
        return self.data / "models" if self.models is None else self.models

    @property
    def lock_file(self) -> Path:
        """Held by the one live server of this data folder."""
        return self.data / "lock"

    @property
    def base_url(self) -> str:
        """What a client on this machine uses; ends in `/v1`."""
        anywhere = self.host in ("0.0.0.0", "::", "*")
        host = "127.0.0.1" if anywhere else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"

    @property
    def public_url(self) -> str:
        """Links to files begin with it; no slash at its end."""
        return self.base_url.removesuffix("/v1") if self.public is None else self.public

    @property
    def harvests_place(self) -> str:
        """As `acs.storage.shards.store.Store.at` takes it."""
        return str(self.data / "harvests") if self.harvests is None else self.harvests

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
    def ledger_checkpoint(self) -> Path:
        return self.data / "ledger.checkpoint"

    @property
    def views(self) -> Path:
        """Made from the events, and made again when it is deleted."""
        return self.data / "views.duckdb"

    @property
    def views_socket(self) -> Path:
        return self.data / "views.sock"

    @property
    def answers_dir(self) -> Path:
        """Answers kept for those who send a request again."""
        return self.data / "blobs" / "answers"

    @property
    def jobs_dir(self) -> Path:
        """Requests and results of Jobs."""
        return self.data / "blobs" / "jobs"

    @property
    def harvest_plans_dir(self) -> Path:
        """What Harvests that have not ended read."""
        return self.data / "blobs" / "harvests"

    @property
    def links_key(self) -> Path:
        """What links to files are signed with; they work for as long as it stays."""
        return self.data / "links.key"

    @property
    def looms_dir(self) -> Path:
        """Texts and tokens of Looms."""
        return self.data / "blobs" / "looms"

    @property
    def run_dir(self) -> Path:
        """Files of one run: tokens, HAProxy's configuration, logs. Nothing in it must outlive the server."""
        return self.data / "run"

    @property
    def logs_dir(self) -> Path:
        return self.run_dir / "logs"

    @property
    def server_log(self) -> Path:
        """What the driver and its libraries write to stderr."""
        return self.logs_dir / "server.log"

    @property
    def fault_file(self) -> Path:
        """Where a child process of the supervisor leaves the sentence for the operator."""
        return self.run_dir / "fault"

    @property
    def ray_starting_file(self) -> Path:
        """There while the driver starts Ray; there still when that failed."""
        return self.run_dir / "ray_starting"

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
            models=Path(env["ACS_MODELS"]).expanduser().resolve() if env.get("ACS_MODELS") else None,
            stop_grace_s=_seconds(env, "ACS_STOP_GRACE_S", 3.0),
            metrics_host=env.get("ACS_METRICS_HOST", "127.0.0.1"),
            ray_address=env.get("RAY_ADDRESS") or None,
            harvests=_place(env, "ACS_HARVESTS"),
            public=_url(env, "ACS_PUBLIC_URL"),
        )


def _place(env: Mapping[str, str], name: str) -> str | None:
    """A bucket's address as it is, a folder's path made absolute."""
    text = env.get(name) or None
    return text if text is None or "://" in text else str(Path(text).expanduser().resolve())


def _url(env: Mapping[str, str], name: str) -> str | None:
    text = env.get(name) or None
    if text is not None and not text.startswith(("http://", "https://")):
        raise SettingsError(f"{name}={text!r} is no address that begins with http:// or https://.")
    return text.rstrip("/") if text is not None else None


def _integer(env: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = env.get(name, str(default))
    if not text.isdecimal() or not low <= int(text) <= high:
        raise SettingsError(f"{name}={text!r} is not a whole number from {low} to {high}.")
    return int(text)


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(env.get(name, default))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise SettingsError(f"{name}={env[name]!r} is not a number of seconds from 0 to 3600.")
    return value
