"""The examples of README.md and docs/ do what the pages say, against a running server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import Example

from docs import pages

EXAMPLES = [example for page in pages.PAGES for example in pages.examples(page)]
LIMIT_S = 60
HTTP_ERROR = 22  # curl's exit status for an answer of 400 and above, with --fail-with-body


@pytest.mark.server
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example_does_what_its_page_says(
    example: Example, environment: dict[str, str], folders: dict[Path, Path]
) -> None:
    command = ["bash", "-euo", "pipefail"] if example.language == "bash" else [sys.executable, "-"]
    ran = subprocess.run(
        command,
        input=example.code,
        env=environment,
        cwd=folders[example.page],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    shows_error = example.kind == "json" and "error" in json.loads(example.printed or "")
    assert ran.returncode == (HTTP_ERROR if shows_error else 0), ran.stdout + ran.stderr
    if example.printed is None:
        return
    if example.kind == "json":
        assert pages.shape(json.loads(ran.stdout)) == pages.shape(json.loads(example.printed))
    elif "data: " in example.printed:
        assert pages.shape(pages.events(ran.stdout)) == pages.shape(pages.events(example.printed))
        assert ran.stdout.endswith("data: [DONE]\n\n")
    else:
        assert len(ran.stdout.splitlines()) == len(example.printed.splitlines()), ran.stdout


def test_every_page_has_examples() -> None:
    pages_with_examples = {example.page.name for example in EXAMPLES}
    assert pages_with_examples == {page.name for page in pages.PAGES}


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.is_file(), target
        headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, target


def test_the_readme_names_files_that_exist() -> None:
    named = set(
        re.findall(r"`((?:events|storage|platform|serve_apps|tests|docs|acs)/[\w./-]+)`", pages.README.read_text())
    )
    assert named
    assert {name for name in named if not (pages.ROOT / name).exists()} == set()
