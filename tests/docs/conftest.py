from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from server.running import Server

from docs import pages


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """Where the examples of each page run, as a reader's do: a later one finds what an earlier one has written."""
    return {page: tmp_path_factory.mktemp(page.stem) for page in pages.PAGES}


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
