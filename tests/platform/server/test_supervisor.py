"""The supervisor with a stand-in for its driver, in a process of its own: it ends all its descendants."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from server.running import free_port

RUN = """
from acs.platform.server import supervisor
supervisor._DRIVER = "stand_in"
supervisor._RAY_PATIENCE_S = 0.1
raise SystemExit(supervisor.serve())
"""
STARTING_RAY = """
import os, sys, time
from pathlib import Path
run = Path(os.environ["ACS_DATA"], "run")
with Path(os.environ["ACS_DATA"], "starts").open("a") as starts:
    starts.write(os.environ["ACS_RAY_AGENT_PORTS"] + "\\n")
(run / "ray_starting").touch()
"""
RAISES = STARTING_RAY + "(run / 'fault').write_text('Starting the server failed (Exception: too late).'); sys.exit(1)"
IS_KILLED = STARTING_RAY + "os.kill(os.getpid(), 9)"
HANGS = STARTING_RAY + "time.sleep(600)"
FAILS_LATER = STARTING_RAY + "(run / 'ray_starting').unlink(); (run / 'fault').write_text('No model.'); sys.exit(1)"
STANDS_BY = """
import os, signal, sys
from pathlib import Path
mine = Path(os.environ["ACS_DATA"], sys.argv[1])
def told(*_):
    mine.with_suffix(".told").touch()
    sys.exit()
signal.signal(signal.SIGTERM, told)
mine.touch()
while True:
    signal.pause()
"""
HAS_TWO = f"""
import os, signal, subprocess, sys, time
from pathlib import Path
data = Path(os.environ["ACS_DATA"])
for name in ("LedgerActor", "runner"):
    subprocess.Popen([sys.executable, "-c", {STANDS_BY!r}, name])
    while not (data / name).exists():
        time.sleep(0.01)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(600)
"""


def serve(folder: Path, driver: str) -> subprocess.CompletedProcess[str]:
    (folder / "stand_in.py").write_text(driver)
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    data = folder / "data"
    env = os.environ | {
        "PYTHONPATH": paths,
        "ACS_DATA": str(data),
        "ACS_PORT": str(free_port()),
        "ACS_CATALOGUE": "fake",
    }
    return subprocess.run([sys.executable, "-c", RUN], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("driver", "how"),
    [(RAISES, "too late"), (IS_KILLED, "SIGKILL"), (HANGS, "neither started nor failed")],
    ids=["raises", "is killed", "hangs"],
)
def test_a_ray_that_does_not_come_up_is_tried_three_times_and_then_the_operator_told_what_to_do(
    tmp_path: Path, driver: str, how: str
) -> None:
    done = serve(tmp_path, driver)
    assert done.returncode == 1
    assert re.findall(r"starting it again \((.+)\)", done.stdout) == ["two more tries", "one more try"]
    (sentence,) = done.stderr.splitlines()
    assert "3 tries. End what keeps this machine's processors or memory busy, and start the server again" in sentence
    assert how in sentence
    ports = (tmp_path / "data" / "starts").read_text().splitlines()
    assert len(set(ports)) == 3, "each try has ports of its own"


def test_what_fails_after_ray_is_up_is_not_tried_again(tmp_path: Path) -> None:
    done = serve(tmp_path, FAILS_LATER)
    assert done.returncode == 1
    assert "Ray" not in done.stdout
    assert done.stderr == "acs: No model.\n"
    assert len((tmp_path / "data" / "starts").read_text().splitlines()) == 1


def test_the_ledger_ends_before_anybody_is_told_to_end_and_so_records_nothing_of_it(tmp_path: Path) -> None:
    assert serve(tmp_path, HAS_TWO).returncode == 0
    assert [file.name for file in (tmp_path / "data").glob("*.told")] == ["runner.told"]
