"""Harvests whose files go to a disk of 1 MB, which fills.

Only a mount of one's own has such a disk, so the story runs in a process of its own: this file, as a program.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def told(toy_checkpoint, tmp_path_factory):
    """What the story found, fact by fact."""
    disk = tmp_path_factory.mktemp("disk")
    mount = 'mount -t tmpfs -o size=1m none "$1"\nshift\nexec "$@"'
    alone = ["unshare", "--map-root-user", "--mount", "sh", "-e", "-c", mount]
    try:
        tried = subprocess.run([*alone, "sh", disk, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no unshare on this machine")
    if tried.returncode:
        pytest.skip(f"a mount of one's own is not permitted here: {tried.stderr.strip()}")
    story = [sys.executable, __file__, disk, toy_checkpoint]
    ran = subprocess.run([*alone, "sh", disk, *story], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_it_fails_with_a_word_that_helps(told):
    assert (told["status"], told["error"]["code"]) == ("failed", "storage_full")
    assert "when there is room" in told["error"]["message"]


def test_it_pays_for_what_was_read(told):
    assert 0 < told["noted"] <= told["settled"] <= told["n_tokens"]


def test_nothing_of_it_can_be_seen(told):  # the story has waited until its files were gone
    assert not told["has_result"]


def test_when_there_is_room_again_the_next_one_is_done(told):
    assert told["next"] == "done"


async def story(disk, checkpoint):
    sys.path[:0] = [str(Path(__file__).parents[1])]
    from api_client import until
    from harvest_client import RESOLVED, harvests_api

    from acs.events.harvest import Harvest

    async with harvests_api(Path(checkpoint), place=disk) as harvests:
        harvest_id = await harvests.submit(prompts=["Water is wet and so is the sea"] * 400, layers="all")
        found = await harvests.ended(harvest_id)
        (settled,) = harvests.events(RESOLVED)
        await until(lambda: harvests.files.places() == [])
        following = await harvests.ended(await harvests.submit())
        return {
            "status": found["status"],
            "error": found.get("error"),
            "n_tokens": found["n_tokens"],
            "has_result": "result" in found,
            "settled": settled.prompt_tokens,
            "noted": sum(event.tokens for event in harvests.of(harvest_id, Harvest.ShardWritten)),
            "next": following["status"],
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(story(*sys.argv[1:]))))
