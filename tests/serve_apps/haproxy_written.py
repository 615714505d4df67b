"""The HAProxy configuration that the installed Ray Serve really writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def by_serve(folder: Path, *, port: int, ingress: int | None) -> str:
    """For clients at `port`; an ingress listens at the port `ingress`, Serve's Python proxy is its understudy. None:
    there is no application yet. Files that HAProxy uses lie in `folder`.
    """
    from ray.serve._private import haproxy
    from ray.serve.config import HTTPOptions

    config: Any = haproxy.HAProxyConfig(
        http_options=HTTPOptions(host="127.0.0.1", port=port),
        socket_path=str(folder / "a.sock"),
        server_state_base=str(folder),
        server_state_file=str(folder / "state"),
    )
    api: Any = haproxy.HAProxyApi(cfg=config, config_file_path=str(folder / "haproxy.cfg"))
    if ingress is not None:
        backend = haproxy.BackendConfig(
            name="http-api",
            path_prefix="/",
            app_name="api",
            servers=[haproxy.ServerConfig(name="ingress", host="127.0.0.1", port=ingress)],
            fallback_server=haproxy.ServerConfig(name="understudy", host="127.0.0.1", port=8500),
        )
        api.set_backend_configs({"http-api": backend})
    api._generate_config_file_internal()
    return (folder / "haproxy.cfg").read_text()
