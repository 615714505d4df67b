from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from server.running import Server


@pytest.fixture(scope="session")
def environment(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a reader of the quickstart has; and curl says by its exit status whether an answer is an error."""
    home = tmp_path_factory.mktemp("home")
    (home / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
    return {
        **os.environ,
        "CURL_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ACS_API_BASE": server.v1,
        "ACS_API_KEY": server.key,
        "ACS_DATA": str(server.data),
        "PYTHONUTF8": "1",
    }
