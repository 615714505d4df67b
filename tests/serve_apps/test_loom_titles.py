"""Titles of Looms that change, or go with their Looms, while somebody else reads or gives them."""

import pytest
from loom_client import looms_api

from acs.events.loom import Loom
from acs.platform.looms.client import LoomClient


@pytest.fixture
async def looms(toy_checkpoint):
    async with looms_api(toy_checkpoint) as looms:
        yield looms


async def retitle(looms, loom_id, title):
    answer = await looms.http.patch(f"/v1/looms/{loom_id}", json={"title": title})
    assert (answer.status_code, answer.json()["title"]) == (200, title), answer.text


async def listed(looms):
    answer = await looms.http.get("/v1/looms")
    assert answer.status_code == 200, answer.text
    return [(loom["id"], loom["title"]) for loom in answer.json()["data"]]


def between(monkeypatch, question, *, before=None, after=None):
    """What happens just before or after the next such question is put to the ledger."""
    ask = getattr(LoomClient, question)

    async def asked(self, *args):
        monkeypatch.setattr(LoomClient, question, ask)
        if before is not None:
            await before()
        answer = await ask(self, *args)
        if after is not None:
            await after()
        return answer

    monkeypatch.setattr(LoomClient, question, asked)


async def test_a_title_given_again_while_another_replaces_it_can_be_read(looms, monkeypatch):
    loom_id, _ = await looms.plant(title="Skies")
    between(monkeypatch, "retitle", before=lambda: retitle(looms, loom_id, "Seas"))
    await retitle(looms, loom_id, "Skies")
    assert (await looms.loom(loom_id))["title"] == "Skies"
    assert await listed(looms) == [(loom_id, "Skies")]
    assert looms.blobs() == 2  # the root and one title


async def test_a_new_title_that_is_replaced_at_once_is_still_answered(looms, monkeypatch):
    loom_id, _ = await looms.plant(title="Skies")
    between(monkeypatch, "retitle", after=lambda: retitle(looms, loom_id, "Seas"))
    await retitle(looms, loom_id, "Clouds")
    assert (await looms.loom(loom_id))["title"] == "Seas"


async def test_a_loom_deleted_while_looms_are_listed_is_not_among_them(looms, monkeypatch):
    kept, _ = await looms.plant(title="Skies")
    deleted, _ = await looms.plant(title="Seas")
    between(monkeypatch, "browse", after=lambda: looms.delete(deleted))
    assert await listed(looms) == [(kept, "Skies")]


async def test_a_loom_retitled_while_looms_are_listed_has_its_new_title(looms, monkeypatch):
    loom_id, _ = await looms.plant(title="Skies")
    between(monkeypatch, "browse", after=lambda: retitle(looms, loom_id, "Seas"))
    assert await listed(looms) == [(loom_id, "Seas")]


async def test_a_loom_whose_title_is_lost_leaves_the_others_on_the_list(looms):
    kept, _ = await looms.plant(title="Skies")
    await looms.plant(title="Seas")
    looms.api.services.looms.erase(looms.events(Loom.Created)[-1].title_sha256)
    assert await listed(looms) == [(kept, "Skies")]
