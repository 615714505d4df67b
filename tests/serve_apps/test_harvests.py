"""Harvests over HTTP: what is answered, what the events say, what it costs, and what lies in the files."""

import asyncio
import hashlib
import time
from datetime import datetime, timedelta
from types import SimpleNamespace

import duckdb
import numpy as np
import pytest
from api_client import until
from harvest_client import HEAD, PROMPTS, RESOLVED, error_of, first_shard_noted, harvests_api

from acs.events.harvest import Harvest
from acs.events.ids import HARVEST, show, uuid7
from acs.events.ledger import Ledger
from acs.platform.harvests.pipeline import Pipeline
from acs.platform.inference.contract import Failed
from acs.platform.ledger.harvest_contract import StopHarvest
from acs.serve_apps.api.routes import files
from acs.storage.shards import store as stores
from acs.storage.shards.store import FULL, StoreUnavailable


@pytest.fixture
async def harvests(toy_checkpoint):
    async with harvests_api(toy_checkpoint) as harvests:
        yield harvests


async def test_a_submitted_harvest_is_answered_with_its_object_and_its_place(toy_checkpoint):
    async with harvests_api(toy_checkpoint, runner=False) as harvests:
        answer = await harvests.post()
        found = answer.json()
        assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/harvest/{found['job_id']}")
        assert list(found) == HEAD
        assert (found["status"], found["model"], found["n_prompts"]) == ("pending", "toy", 4)
        assert found["n_tokens"] == sum(len(harvests.tokenizer.encode(prompt)) for prompt in PROMPTS)
        assert datetime.fromisoformat(found["created_at"]).tzinfo is not None
        assert (await harvests.get(found["job_id"])).json() == found


async def test_a_done_harvest_has_every_token_of_every_prompt_in_its_files(harvests):
    found = await harvests.done(await harvests.submit())
    assert list(found) == [*HEAD, "started_at", "completed_at", "result", "urls_expire_at"]
    assert list(found["result"]) == ["n_shards", "layer_indices", "manifest_url", "shard_urls", "stats_url", "timings"]
    assert (found["result"]["n_shards"], found["result"]["layer_indices"]) == (2, [0, 2])
    tables = await harvests.shards(found)
    labels = [
        row
        for table in tables
        for row in zip(*(table[name].to_pylist() for name in table.column_names[:4]), strict=True)
    ]
    ids = [harvests.tokenizer.encode(prompt) for prompt in PROMPTS]
    texts = harvests.tokenizer.token_texts
    assert labels == [(i, at, id, texts[id]) for i, prompt in enumerate(ids) for at, id in enumerate(prompt)]
    first = np.concatenate([np.stack(table["layer_2"].to_numpy())[:, 0] for table in tables])
    np.testing.assert_array_equal(first, np.array([2 / 16 + at / 4096 + id for _, at, id, _ in labels], np.float32))


async def test_its_manifest_names_its_files_and_where_they_come_from(harvests):
    harvest_id = await harvests.submit()
    found = await harvests.done(harvest_id)
    manifest = (await harvests.http.get(found["result"]["manifest_url"])).json()
    assert [shard["file"] for shard in manifest["shards"]] == [
        url.rpartition("/")[2].partition("?")[0] for url in found["result"]["shard_urls"]
    ]
    assert (manifest["harvest_id"], manifest["model"], manifest["n_tokens"]) == (harvest_id, "toy", found["n_tokens"])
    assert manifest["n_rows"] == found["n_tokens"]
    stats = await harvests.http.get(found["result"]["stats_url"])
    assert hashlib.sha256(stats.content).hexdigest() == manifest["stats"]["sha256"]
    assert list(stats.json()["layers"]) == ["0", "2"]


async def test_its_hold_is_placed_when_it_is_submitted_and_settled_with_its_end(harvests):
    found = await harvests.done(await harvests.submit())
    (placed,), (settled,) = harvests.events(Ledger.HoldPlaced), harvests.events(RESOLVED)
    assert (placed.kind, placed.owner, placed.prompt_tokens) == ("harvest", found["job_id"], found["n_tokens"])
    assert (placed.choices, placed.max_tokens) == (4, 0)
    assert isinstance(settled, Ledger.HoldSettled)
    assert (settled.hold_id, settled.prompt_tokens, settled.completion_tokens) == (
        placed.hold_id,
        found["n_tokens"],
        0,
    )


async def test_its_plan_which_has_the_prompts_is_erased_when_it_has_ended(harvests):
    harvest_id = await harvests.submit()
    (created,) = harvests.of(harvest_id, Harvest.Created)
    await harvests.done(harvest_id)
    plan = harvests.api.ledger.harvest_plans._path(created.plan_sha256)
    await until(lambda: not plan.exists())


async def test_a_running_harvest_says_how_far_it_is(harvests):
    harvests.held_up()
    harvest_id = await harvests.submit()
    await until(lambda: harvests.of(harvest_id, Harvest.Started))
    found = (await harvests.get(harvest_id)).json()
    assert list(found) == [*HEAD, "started_at", "progress"]
    assert found["progress"] == {"prompts_done": 0, "tokens_done": 0, "shards_done": 0, "bytes_done": 0}


async def test_a_dry_run_says_what_it_would_cost_and_holds_nothing(harvests):
    answer = await harvests.post(query="?dry_run=true")
    estimate = answer.json()
    assert answer.status_code == 200
    assert (estimate["object"], estimate["n_rows"], estimate["n_files"]) == (
        "harvest_estimate",
        estimate["n_tokens"],
        4,
    )
    assert estimate["hold_tokens"] == estimate["n_tokens"]
    assert estimate["estimated_s"] is None
    assert harvests.events((Ledger.HoldPlaced, Harvest.Created)) == []
    await harvests.done(await harvests.submit())
    assert (await harvests.post(query="?dry_run=true")).json()["estimated_s"] >= 0
    assert error_of(await harvests.post(query="?dry_run=yes")) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompts": []}, "invalid_request", "prompts"),
        ({"prompts": ["a"] * 4097}, "invalid_request", "prompts"),
        ({"layers": [4]}, "invalid_request", "layers"),
        ({"layers": []}, "invalid_request", "layers"),
        ({"model": "none"}, "model_not_found", "model"),
        ({"prompts": ["a", "b " * 5000]}, "context_length_exceeded", "prompts[1]"),
        ({"project_onto": [[1.0]]}, "invalid_request", "project_onto"),
        ({"code": "import os"}, "invalid_request", "code"),
        ({"shard_size": 0}, "invalid_request", "shard_size"),
    ],
    ids=repr,
)
async def test_a_request_that_cannot_be_answered_is_no_harvest(harvests, fields, code, param):
    answer = await harvests.post(**fields)
    assert error_of(answer) == (400, code)
    assert answer.json()["error"]["param"] == param
    assert harvests.events((Ledger.HoldPlaced, Harvest.Created)) == []


async def test_a_model_without_activations_cannot_be_harvested(toy_checkpoint):
    async with harvests_api(toy_checkpoint, activations=False) as harvests:
        assert error_of(await harvests.post()) == (400, "harvest_unsupported")


async def test_a_body_of_a_harvest_may_be_larger_than_others(toy_checkpoint):
    async with harvests_api(toy_checkpoint, body_bytes=1000, harvest_body_bytes=2000) as harvests:
        assert (await harvests.post(prompts=["a " * 600])).status_code == 202
        assert error_of(await harvests.post(prompts=["a " * 1200])) == (413, "request_too_large")


async def test_a_body_of_51_mb_is_no_harvest(harvests):
    answer = await harvests.http.post("/v1/harvest", content=b" " * 51_000_000)
    assert error_of(answer) == (413, "request_too_large")


async def test_an_unknown_harvest_and_another_accounts_are_not_found(harvests):
    harvest_id = await harvests.submit()
    _, theirs = await harvests.another_accounts()
    unknown = show(HARVEST, uuid7())
    for found in (
        await harvests.get(unknown),
        await harvests.cancel(unknown),
        await harvests.get("x"),
        await harvests.get(harvest_id, headers=theirs),
        await harvests.http.delete(f"/v1/harvest/{harvest_id}", headers=theirs),
    ):
        assert error_of(found) == (404, "harvest_job_not_found")
    assert (await harvests.http.get("/v1/harvest", headers=theirs)).json()["data"] == []


# Capacity


async def test_a_key_may_have_three_harvests_that_have_not_ended(harvests):
    harvests.held_up()
    ids = [await harvests.submit() for _ in range(3)]
    answer = await harvests.post()
    assert error_of(answer) == (429, "harvest_concurrency_exceeded")
    assert answer.headers["retry-after"] == "30"
    assert (await harvests.cancel(ids[0])).status_code == 200
    assert (await harvests.post()).status_code == 202


async def test_the_platform_takes_so_many(toy_checkpoint):
    async with harvests_api(toy_checkpoint, runner=False, platform_harvests=1) as harvests:
        await harvests.submit()
        _, theirs = await harvests.another_accounts()
        assert error_of(await harvests.post(theirs)) == (429, "harvest_capacity_exceeded")


async def test_a_keys_quota_of_a_month_counts_those_that_ran(toy_checkpoint):
    async with harvests_api(toy_checkpoint, runner=False, key_harvests_per_month=2) as harvests:
        await harvests.cancel(await harvests.submit())
        harvests.hire()
        for _ in range(2):
            await harvests.done(await harvests.submit())
        answer = await harvests.post()
        assert error_of(answer) == (429, "harvest_quota_exceeded")
        assert answer.headers["x-should-retry"] == "false"


async def test_an_account_may_have_so_many_bytes_of_files(toy_checkpoint):
    async with harvests_api(toy_checkpoint, runner=False) as harvests:
        most = (await harvests.post(query="?dry_run=true")).json()["max_bytes"]
    async with harvests_api(toy_checkpoint, runner=False, account_harvest_bytes=most + 1) as harvests:
        await harvests.submit()
        answer = await harvests.post()
        assert error_of(answer) == (400, "invalid_request")
        assert f"{most:,}" in answer.json()["error"]["message"]
        assert f"{most + 1:,}" in answer.json()["error"]["message"]


async def test_a_harvest_is_never_clamped(harvests):
    ledger = harvests.api.ledger
    (account,) = {event.account_id for event in ledger.events(Ledger.HoldPlaced)} or {None}
    await harvests.done(await harvests.submit())
    (placed,) = ledger.events(Ledger.HoldPlaced)
    ledger.accounts.set_account_budget(placed.account_id, 2 * placed.prompt_tokens - 1)
    ledger.desk.note_budgets(placed.account_id, lambda: None)
    assert account is None
    assert error_of(await harvests.post()) == (429, "budget_exceeded")


async def test_a_harvest_counts_towards_the_rate_when_it_is_submitted(toy_checkpoint):
    async with harvests_api(toy_checkpoint, key_rate_per_minute=1) as harvests:
        await harvests.submit()
        assert error_of(await harvests.post()) == (429, "rate_limited")


async def test_harvests_beyond_those_that_run_at_once_are_pending_and_run_in_their_turn(toy_checkpoint):
    async with harvests_api(toy_checkpoint, harvests_at_once=1) as harvests:
        ids = [await harvests.submit() for _ in range(3)]
        for harvest_id in ids:
            await harvests.done(harvest_id)
        kinds = [type(event).__name__ for event in harvests.events((Harvest.Started, Harvest.Done))]
        assert kinds == ["Started", "Done"] * 3


# Cancelling


async def test_a_pending_harvest_that_is_cancelled_costs_nothing(toy_checkpoint):
    async with harvests_api(toy_checkpoint, runner=False) as harvests:
        answer = await harvests.cancel(await harvests.submit())
        assert answer.status_code == 200
        assert list(answer.json()) == [*HEAD, "completed_at"]
        assert answer.json()["status"] == "cancelled"
        (released,) = harvests.events(RESOLVED)
        assert isinstance(released, Ledger.HoldReleased)


async def test_a_running_harvest_that_is_cancelled_pays_what_it_has_read_and_leaves_no_files(harvests):
    written = asyncio.Event()
    harvests.runner.harvests._asks.ask = first_shard_noted(harvests, written)
    harvest_id = await harvests.submit(prompts=PROMPTS * 20)
    await written.wait()
    found = (await harvests.cancel(harvest_id)).json()
    assert found["status"] == "cancelled"
    (settled,) = harvests.events(RESOLVED)
    noted = sum(event.tokens for event in harvests.of(harvest_id, Harvest.ShardWritten))
    assert noted <= settled.prompt_tokens <= found["n_tokens"]
    await until(lambda: harvests.files.places() == [])
    await until(lambda: harvests.api.running == 0)
    again = await harvests.cancel(harvest_id)
    assert error_of(again) == (409, "harvest_not_cancellable")
    assert again.headers["x-should-retry"] == "false"


async def test_a_done_harvest_cannot_be_cancelled(harvests):
    harvest_id = await harvests.submit()
    await harvests.done(harvest_id)
    assert error_of(await harvests.cancel(harvest_id)) == (409, "harvest_not_cancellable")


async def test_a_suspended_accounts_pending_harvest_is_cancelled_when_its_turn_comes(toy_checkpoint):
    async with harvests_api(toy_checkpoint, runner=False) as harvests:
        account, theirs = await harvests.another_accounts()
        harvest_id = await harvests.submit(theirs)
        harvests.api.ledger.accounts.suspend_account(account)
        harvests.hire()
        await until(lambda: harvests.of(harvest_id, Harvest.Cancelled))
        assert harvests.of(harvest_id, Harvest.Started) == []


# Faults


async def test_a_fault_of_the_model_that_stays_ends_it_as_failed_and_only_what_was_read_is_charged(
    harvests, monkeypatch
):
    monkeypatch.setitem(Pipeline.__init__.__kwdefaults__, "pauses_s", ())  # no further try
    harvests.engine.fail_next = Failed("upstream_server_error", "It failed.")
    found = await harvests.ended(await harvests.submit())
    assert list(found) == [*HEAD, "started_at", "completed_at", "error"]
    assert (found["status"], found["error"]["code"]) == ("failed", "upstream_server_error")
    (resolved,) = harvests.events(RESOLVED)
    assert getattr(resolved, "prompt_tokens", 0) < found["n_tokens"]
    await until(lambda: harvests.files.places() == [])


async def test_a_full_disk_ends_it_with_a_word_that_helps_and_nothing_half_visible(harvests, monkeypatch):
    def full(*_):
        raise StoreUnavailable(FULL)

    monkeypatch.setattr(stores.Store, "publish", full)
    found = await harvests.ended(await harvests.submit())
    assert (found["status"], found["error"]["code"]) == ("failed", "storage_full")
    assert "full" in found["error"]["message"]
    (settled,) = harvests.events(RESOLVED)
    assert 0 < settled.prompt_tokens <= found["n_tokens"]
    monkeypatch.undo()
    await until(lambda: harvests.files.places() == [])


# The runner


async def test_a_runner_that_is_gone_is_followed_by_one_that_goes_on_where_it_stopped(harvests):
    undisturbed = await harvests.shards(await harvests.done(await harvests.submit(prompts=PROMPTS * 20)))
    written = asyncio.Event()
    harvests.runner.harvests._asks.ask = first_shard_noted(harvests, written)
    harvest_id = await harvests.submit(prompts=PROMPTS * 20)
    await written.wait()
    harvests.runner.lose_link()
    harvests.engine.step_s = 0
    harvests.hire()
    await until(lambda: harvests.runner.harvests._running)
    (run,) = harvests.runner.harvests._running.values()
    found = await harvests.done(harvest_id)
    assert [event.run for event in harvests.of(harvest_id, Harvest.Started)] == [1, 2]
    numbers = [event.number for event in harvests.of(harvest_id, Harvest.ShardWritten)]
    assert sorted(numbers) == list(range(40)), "each once"
    noted = sum(shard.tokens for shard in run.work.shards.values())
    assert noted > 0
    assert run.pipeline.tokens_read == found["n_tokens"] - noted
    assert await harvests.shards(found) == undisturbed
    assert len(harvests.events(RESOLVED)) == 2


async def test_what_a_runner_says_that_was_replaced_changes_nothing(harvests):
    harvests.held_up()
    harvest_id = await harvests.submit()
    await until(lambda: harvests.of(harvest_id, Harvest.Started))
    former = harvests.runner
    await until(lambda: harvests.api.running > 0)
    harvests.hire()
    await until(lambda: len(harvests.of(harvest_id, Harvest.Started)) == 2)
    harvests.engine.step_s = 0
    for tasks in list(harvests.engine._running.values()):
        for task in tasks.values():
            task.cancel()
    await former.harvests._tell_end(next(iter(former.harvests._running.values())), None, "internal_error")
    assert (await harvests.get(harvest_id)).json()["status"] == "running"


async def test_files_that_nobody_wants_are_removed(harvests):
    kept = await harvests.submit()
    await harvests.done(kept)
    harvests.files.inside("hrv_left_by_a_server_that_was_killed").put("x.parquet", b"x")
    await harvests.runner.harvests.sweep()
    assert harvests.files.places() == [kept]


# Waiting


async def test_files_that_cannot_be_removed_do_not_keep_others(harvests, monkeypatch):
    for name in ("one", "two"):
        harvests.files.inside(name).put("left.parquet", b"rows")
    remove_all = stores.Store.remove_all

    def failing(store):
        if store._root.endswith("/one"):
            raise StoreUnavailable(FULL)
        remove_all(store)

    monkeypatch.setattr(stores.Store, "remove_all", failing)
    await harvests.runner.harvests.sweep()
    assert harvests.files.places() == ["one"]


async def test_a_run_that_is_stopped_before_it_begins_is_forgotten(harvests):
    runner = harvests.runner.harvests
    harvests.held_up()
    harvest_id = await harvests.submit()
    await until(lambda: runner._running)
    (run,) = runner._running.values()
    runner._running.clear()
    runner.do(run.work)
    runner.do(StopHarvest(harvest_id, run.work.run))
    await until(lambda: not runner._running)


async def test_a_read_with_wait_answers_when_the_status_changes(toy_checkpoint):
    async with harvests_api(toy_checkpoint, runner=False) as harvests:
        harvest_id = await harvests.submit()
        waiting = asyncio.create_task(harvests.get(harvest_id, "?wait=60"))
        await until(lambda: harvests.api.ledger.harvest_desk._waits)
        harvests.held_up()
        harvests.hire()
        assert (await waiting).json()["status"] == "running"
        waiting = asyncio.create_task(harvests.get(harvest_id, "?wait=60"))
        await until(lambda: harvests.api.ledger.harvest_desk._waits)
        await harvests.cancel(harvest_id)
        assert (await waiting).json()["status"] == "cancelled"
        assert (await harvests.get(harvest_id, "?wait=60")).json()["status"] == "cancelled"


@pytest.mark.parametrize("wait", ["61", "-1", "1.5", "x", "1&wait=2"])
async def test_a_wait_that_is_none_is_refused(harvests, wait):
    answer = await harvests.get(await harvests.submit(), f"?wait={wait}")
    assert (error_of(answer), answer.json()["error"]["param"]) == ((400, "invalid_request"), "wait")


async def test_more_than_four_waiting_reads_of_a_key_are_declined(toy_checkpoint):
    async with harvests_api(toy_checkpoint, runner=False) as harvests:
        harvest_id = await harvests.submit()
        waiting = [asyncio.create_task(harvests.get(harvest_id, "?wait=60")) for _ in range(4)]
        waits = harvests.api.ledger.harvest_desk._waits
        await until(lambda: len(waits) == 4)
        answer = await harvests.get(harvest_id, "?wait=60")
        assert (answer.status_code, answer.json()["status"]) == (200, "pending")
        assert (answer.headers["x-acs-longpoll"], answer.headers["retry-after"]) == ("declined", "3")
        await harvests.cancel(harvest_id)
        assert {answer.json()["status"] for answer in await asyncio.gather(*waiting)} == {"cancelled"}


async def test_the_sixty_fifth_waiting_read_is_declined_whoever_asks(toy_checkpoint):
    async with harvests_api(toy_checkpoint, runner=False) as harvests:
        askers = [(await harvests.another_accounts())[1] for _ in range(17)]
        asked = [(await harvests.submit(headers), headers) for headers in askers]
        waiting = [
            asyncio.create_task(harvests.get(harvest_id, "?wait=60", headers=headers))
            for harvest_id, headers in asked[:16]
            for _ in range(4)
        ]
        waits = harvests.api.ledger.harvest_desk._waits
        await until(lambda: len(waits) == 64)
        harvest_id, headers = asked[16]
        answer = await harvests.get(harvest_id, "?wait=60", headers=headers)
        assert (answer.status_code, answer.headers["x-acs-longpoll"]) == (200, "declined")
        for harvest_id, headers in asked:
            await harvests.http.delete(f"/v1/harvest/{harvest_id}", headers=headers)
        assert {answer.json()["status"] for answer in await asyncio.gather(*waiting)} == {"cancelled"}


# Links


async def test_its_links_work_for_seven_days_from_its_end(harvests):
    found = await harvests.done(await harvests.submit())
    ended, expire = (datetime.fromisoformat(found[name]) for name in ("completed_at", "urls_expire_at"))
    assert expire - ended == timedelta(days=7)
    result = found["result"]
    for url in (result["manifest_url"], result["stats_url"], *result["shard_urls"]):
        assert f"expires={int(expire.timestamp())}&" in url


async def test_a_link_of_more_than_seven_days_ago_leads_nowhere(harvests, monkeypatch):
    url = (await harvests.done(await harvests.submit()))["result"]["manifest_url"]
    week = 7 * 86400
    now = time.time()
    monkeypatch.setattr(files, "time", SimpleNamespace(time=lambda: now + week - 60))
    assert (await harvests.http.get(url)).status_code == 200
    monkeypatch.setattr(files, "time", SimpleNamespace(time=lambda: now + week + 1))
    assert error_of(await harvests.http.get(url)) == (404, None)


async def test_a_link_works_without_a_key_and_in_parts(harvests):
    found = await harvests.done(await harvests.submit())
    url = found["result"]["shard_urls"][0]
    assert url.startswith("http://api/files/hrv_")
    nobody = {"Authorization": ""}
    whole = await harvests.http.get(url, headers={**nobody, "Host": "elsewhere.org"})
    assert hashlib.sha256(whole.content).hexdigest() == whole.headers["etag"].strip('"')
    part = await harvests.http.get(url, headers={**nobody, "Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, whole.content[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(whole.content)}"
    beyond = await harvests.http.get(url, headers={**nobody, "Range": f"bytes={len(whole.content)}-"})
    assert error_of(beyond) == (416, "invalid_request")
    assert beyond.headers["content-range"] == f"bytes */{len(whole.content)}"
    nonsense = await harvests.http.get(url, headers={**nobody, "Range": "lines=1-2"})
    assert (nonsense.status_code, nonsense.content) == (200, whole.content)
    size = await harvests.http.head(url, headers=nobody)
    assert (size.headers["content-length"], size.content) == (str(len(whole.content)), b"")


@pytest.mark.parametrize(
    "forge",
    [
        lambda url: url.replace("shard-00000", "shard-00001"),
        lambda url: url[:-1] + ("0" if url[-1] != "0" else "1"),
        lambda url: url.replace("expires=", "expires=9"),
        lambda url: url.partition("?")[0],
        lambda url: url.replace("/files/hrv_", "/files/..%2Fhrv_"),
        lambda url: url.replace("signature=", "signature=%C3%A9"),
    ],
)
async def test_a_forged_link_leads_nowhere(harvests, forge):
    found = await harvests.done(await harvests.submit())
    assert error_of(await harvests.http.get(forge(found["result"]["shard_urls"][0]))) == (404, None)


async def test_a_genuine_link_to_something_else_leads_nowhere(harvests):
    harvest_id = await harvests.submit()
    await harvests.done(harvest_id)
    links = harvests.api.services.links
    for file in ("..", "../x", "shard-00009-00000000.parquet"):
        url = links.url(harvest_id, file, int(time.time()) + 60)
        assert (await harvests.http.get(url)).status_code == 404
    assert (await harvests.http.get(links.url(harvest_id, "manifest.json", int(time.time()) - 1))).status_code == 404


async def test_a_suspended_accounts_links_stop(harvests):
    account, theirs = await harvests.another_accounts()
    harvest_id = await harvests.submit(theirs)
    await until(lambda: harvests.of(harvest_id, Harvest.Done))
    found = (await harvests.get(harvest_id, headers=theirs)).json()
    url = found["result"]["manifest_url"]
    assert (await harvests.http.get(url)).status_code == 200
    harvests.api.ledger.accounts.suspend_account(account)
    assert (await harvests.http.get(url)).status_code == 404


async def test_when_files_have_been_kept_long_enough_they_go_and_links_stop(toy_checkpoint):
    async with harvests_api(toy_checkpoint, harvest_kept_s=0.5) as harvests:
        found = await harvests.done(await harvests.submit())
        url, harvest_id = found["result"]["manifest_url"], found["job_id"]
        desk = harvests.api.ledger.harvest_desk
        await until(lambda: desk.look_after() or harvests.of(harvest_id, Harvest.FilesExpired))
        assert (await harvests.http.get(url)).status_code == 404
        found = (await harvests.get(harvest_id)).json()
        assert (found["status"], found["urls_expired"]) == ("done", True)
        assert found["result"]["shard_urls"] == []
        await harvests.runner.harvests.sweep()
        assert harvests.files.places() == []


# Lists, and submissions that are sent again


async def test_harvests_are_listed_newest_first_page_by_page(toy_checkpoint):
    async with harvests_api(toy_checkpoint, key_harvests=10) as harvests:
        ids = [await harvests.submit() for _ in range(5)]
        for harvest_id in ids:
            await harvests.done(harvest_id)
        page = (await harvests.http.get("/v1/harvest?limit=2")).json()
        assert [found["job_id"] for found in page["data"]] == ids[:2:-1]
        assert page["has_more"]
        assert "result" not in page["data"][0]
        page = (await harvests.http.get(f"/v1/harvest?after={ids[1]}&status=done")).json()
        assert [found["job_id"] for found in page["data"]] == ids[:1]
        assert (await harvests.http.get("/v1/harvest?status=queued")).status_code == 400


async def test_a_submission_that_is_sent_again_under_its_key_is_the_same_harvest(harvests):
    once = {"Idempotency-Key": "once"}
    first, second = await harvests.post(once), await harvests.post(once)
    assert second.json() == first.json()
    assert (second.status_code, second.headers["idempotent-replayed"]) == (202, "true")
    assert second.headers["location"] == first.headers["location"]
    assert error_of(await harvests.post(once, layers=[1])) == (409, "idempotency_conflict")
    await harvests.done(first.json()["job_id"])
    assert len(harvests.events(Harvest.Created)) == 1


async def test_plain_duckdb_opens_the_files_while_it_still_runs(harvests):
    written = asyncio.Event()
    harvests.runner.harvests._asks.ask = first_shard_noted(harvests, written)
    harvest_id = await harvests.submit(prompts=PROMPTS * 20)
    await written.wait()
    folder = harvests.files.path_of(harvest_id)
    ((count,),) = duckdb.sql(f"SELECT count(*) FROM '{folder}/*.parquet'").fetchall()
    assert count > 0
    await harvests.cancel(harvest_id)
