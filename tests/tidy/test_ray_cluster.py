"""`ray_cluster.yaml` by Ray's own schema and checks, and against the environment that one machine's Ray is given. No
cloud is asked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from acs.platform.server import environment

yaml = pytest.importorskip("yaml")
autoscaler = pytest.importorskip("ray.autoscaler._private.util")
FILE = Path(__file__).parents[2] / "ray_cluster.yaml"
START = ("head_start_ray_commands", "worker_start_ray_commands")


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    """As `ray up` sees it: with the provider's defaults."""
    prepared: dict[str, Any] = autoscaler.prepare_config(yaml.safe_load(FILE.read_text()))
    return prepared


def variables(cluster: dict[str, Any], commands: str) -> dict[str, str]:
    return dict(re.findall(r"([A-Za-z_]+)=(\S+?)(?=[\s;])", " ".join(cluster[commands]).partition("/ray start")[0]))


def test_ray_accepts_it(cluster: dict[str, Any]) -> None:
    autoscaler.validate_config(cluster)


@pytest.mark.parametrize("commands", START)
def test_ray_is_guarded_by_a_token_that_every_node_has(cluster: dict[str, Any], commands: str) -> None:
    given = variables(cluster, commands)
    assert given["RAY_AUTH_MODE"] == "token"
    assert given["RAY_AUTH_TOKEN_PATH"] in cluster["file_mounts"]


@pytest.mark.parametrize("commands", START)
def test_ray_is_started_as_on_one_machine(cluster: dict[str, Any], commands: str) -> None:
    """Of what a server's environment says, the part that Ray reads before our code runs."""
    alone = environment._DEFAULTS | environment._QUIET
    rays = {
        name: value
        for name, value in alone.items()
        if re.match("RAY_|DASHBOARD_|AUTOSCALER_", name) and not name.startswith("RAY_SERVE_")
    }
    assert rays.items() <= variables(cluster, commands).items()


def test_every_node_has_the_project_at_one_path(cluster: dict[str, Any]) -> None:
    (here,) = [there for there, here in cluster["file_mounts"].items() if here == "."]
    assert any(f"cd {here} && ACS_EXTRA=gpu scripts/setup" in command for command in cluster["setup_commands"])
    for commands in START:
        assert f"{here}/.venv/bin/ray start" in " ".join(cluster[commands])
