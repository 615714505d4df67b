"""Looms over HTTP: what is planted, grown, read, followed and deleted, and what it costs."""

import asyncio

import pytest
from api_client import until
from loom_client import PROMPT, RESOLVED, looms_api

from acs.events.ledger import Ledger
from acs.events.loom import Loom
from acs.platform.inference.contract import Failed

DEAD = Failed("vllm_engine_dead", "It died.")
NODE = ["id", "parent_id", "parent_token", "status", "text", "token_ids", "model", "sampling", "finish_reason"]
NODE += ["usage", "logprobs", "created_at", "error"]


@pytest.fixture
async def looms(toy_checkpoint):
    async with looms_api(toy_checkpoint) as looms:
        yield looms


async def test_a_planted_loom_is_its_root(looms):
    answer = await looms.http.post("/v1/looms", json={"prompt": PROMPT, "title": "Skies"})
    loom = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/looms/{loom['id']}")
    assert list(loom) == ["id", "object", "title", "version", "created_at", "nodes"]
    assert (loom["object"], loom["title"], loom["version"]) == ("loom", "Skies", 1)
    (root,) = loom["nodes"]
    assert list(root) == NODE
    assert root["token_ids"] == looms.api.services.models["toy"].tokenizer.encode(PROMPT)
    assert (root["text"], root["status"], root["model"], root["parent_id"]) == (PROMPT, "done", "toy", None)
    assert await looms.loom(loom["id"]) == loom


async def test_a_branch_is_answered_with_its_pending_nodes_which_are_then_done(looms):
    loom_id, root = await looms.plant()
    answer = await looms.ask(loom_id, root, n=2, temperature=0.5, seed=7)
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/looms/{loom_id}")
    pending = answer.json()["nodes"]
    assert [list(node) for node in pending] == [NODE, NODE]
    assert {node["status"] for node in pending} == {"pending"}
    assert [node["sampling"] for node in pending] == [
        {"max_tokens": 3, "temperature": 0.5, "seed": 7},
        {"max_tokens": 3, "temperature": 0.5, "seed": 8},
    ]
    await looms.ended(loom_id)
    done = (await looms.loom(loom_id))["nodes"][1:]
    for before, after in zip(pending, done, strict=True):
        assert len(after["token_ids"]) == 3
        assert (after["status"], after["finish_reason"]) == ("done", "length")
        assert after["usage"] == {"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9, "cached_tokens": 0}
        stays = ("id", "parent_id", "parent_token", "model", "sampling", "created_at", "logprobs", "error")
        assert [after[name] for name in stays] == [before[name] for name in stays]


async def test_each_node_is_what_a_completion_of_its_path_and_sampling_draws(looms):
    loom_id, root = await looms.plant()
    first, second = await looms.grow(loom_id, root, n=2, seed=3)
    (deeper,) = await looms.grow(loom_id, second["id"], seed=4, logprobs=2)
    (inside,) = await looms.grow(loom_id, second["id"], seed=5, at_token=1)
    nodes = await looms.nodes(loom_id)
    paths = {
        first["id"]: nodes[root]["token_ids"],
        second["id"]: nodes[root]["token_ids"],
        deeper["id"]: nodes[root]["token_ids"] + second["token_ids"],
        inside["id"]: nodes[root]["token_ids"] + second["token_ids"][:1],
    }
    for id, prompt in paths.items():
        node = nodes[id]
        fields = {**node["sampling"], "prompt": prompt, "return_token_ids": True}
        (choice,) = (await looms.api.complete(**fields)).json()["choices"]
        assert choice["token_ids"] == node["token_ids"]
        if node["logprobs"] is not None:
            assert node["logprobs"]["token_logprobs"] == choice["logprobs"]["token_logprobs"]
            assert node["logprobs"]["top_logprobs"] == choice["logprobs"]["top_logprobs"]
            assert [set(row) for row in node["logprobs"]["top_token_ids"]] == [
                {str(token_id), "0", "1"} for token_id in node["token_ids"]
            ]
    assert inside["parent_token"] == 1


async def test_the_texts_of_a_path_add_up_to_what_its_tokens_decode_to(looms):
    loom_id, root = await looms.plant()
    tokenizer = looms.api.services.models["toy"].tokenizer
    node, path = root, tokenizer.encode(PROMPT)
    for seed in range(6):
        (grown,) = await looms.grow(loom_id, node, seed=seed, max_tokens=5)
        node, path = grown["id"], path + grown["token_ids"]
        assert await looms.text(loom_id, node) == tokenizer.settled(path)
    nodes = list((await looms.nodes(loom_id)).values())
    assert "".join(node["text"] for node in nodes) == tokenizer.settled(path)


async def test_bytes_of_an_unfinished_character_show_in_the_child(looms):
    tokenizer = looms.api.services.models["toy"].tokenizer
    letter, euro = tokenizer.encode("A"), tokenizer.encode("€")[-3:]  # a token a byte
    loom_id, root = await looms.plant([*letter, *euro])
    assert await looms.text(loom_id, root) == "A€"
    half, half_root = await looms.plant([*letter, *euro[:2]])
    assert await looms.text(half, half_root) == "A"
    (inside,) = await looms.grow(loom_id, root, at_token=len(letter) + 2, seed=1)
    (after,) = await looms.grow(half, half_root, seed=1)
    assert inside["token_ids"] == after["token_ids"]
    assert inside["text"] == after["text"] == tokenizer.settled([*letter, *euro[:2], *after["token_ids"]])[1:]


async def test_one_hold_a_branch_is_charged_with_the_path_once(looms):
    loom_id, root = await looms.plant()
    await looms.grow(loom_id, root, n=3, max_tokens=4)
    (placed,) = looms.events(Ledger.HoldPlaced)
    (settled,) = looms.events(RESOLVED)
    (asked,) = looms.events(Loom.BranchAsked)
    assert (placed.kind, placed.hold_id) == ("branch", asked.hold_id)
    assert (placed.prompt_tokens, placed.choices, placed.max_tokens) == (6, 3, 4)
    assert (settled.prompt_tokens, settled.completion_tokens, settled.http_status) == (6, 12, 200)


async def test_a_branch_that_fails_says_why_and_costs_nothing(looms):
    loom_id, root = await looms.plant()
    looms.engine.fail_next = Failed("upstream_server_error", "No.")
    (failed,) = await looms.grow(loom_id, root)
    assert (failed["status"], failed["text"], failed["error"]["code"]) == ("failed", None, "upstream_server_error")
    (released,) = looms.events(RESOLVED)
    assert isinstance(released, Ledger.HoldReleased)


async def test_a_try_worth_another_is_made_again_under_the_same_hold(looms):
    loom_id, root = await looms.plant()
    looms.engine.fail_next = DEAD
    (done,) = await looms.grow(loom_id, root)
    assert done["status"] == "done"
    assert [type(event).__name__ for event in looms.events(Loom.Event)] == [
        *("Created", "BranchAsked", "BranchStarted", "BranchTryFailed", "BranchStarted", "BranchGrown")
    ]
    assert len(looms.events(RESOLVED)) == 1


async def test_a_branch_whose_runner_dies_is_run_again_and_grows_once(looms):
    looms.engine.step_s = 0.01
    loom_id, root = await looms.plant()
    await looms.branch(loom_id, root, n=2, max_tokens=20)
    await looms.running_in_engine(2)
    looms.runner.lose_link()
    looms.new_runner()
    await looms.ended(loom_id)
    assert len(looms.events(Loom.BranchGrown)) == len(looms.events(RESOLVED)) == 1
    await looms.running_in_engine(0)


# -- following


async def test_since_gives_what_changed_after_a_version_and_no_more(looms):
    loom_id, root = await looms.plant()
    (first,) = await looms.grow(loom_id, root)
    version = (await looms.loom(loom_id))["version"]
    nothing = await looms.loom(loom_id, since=version)
    assert (nothing["nodes"], nothing["deleted"], nothing["version"]) == ([], [], version)
    (second,) = await looms.grow(loom_id, root)
    assert [node["id"] for node in (await looms.loom(loom_id, since=version))["nodes"]] == [second["id"]]
    await looms.delete(loom_id, first["id"])
    changed = await looms.loom(loom_id, since=version)
    assert ([node["id"] for node in changed["nodes"]], changed["deleted"]) == ([second["id"]], [first["id"]])


async def test_a_waiting_read_is_answered_by_the_next_change(looms):
    loom_id, root = await looms.plant()
    waiting = asyncio.create_task(looms.loom(loom_id, since=1, wait=30))
    await asyncio.sleep(0)
    await looms.branch(loom_id, root)
    changed = await waiting
    assert changed["version"] > 1
    assert len(changed["nodes"]) == 1


async def test_a_follower_sees_every_change_once(looms):
    loom_id, root = await looms.plant()
    seen, statuses = 1, {}

    async def follow():
        nonlocal seen
        while sum(status == "done" for status in statuses.values()) < 12:
            changed = await looms.loom(loom_id, since=seen, wait=30)
            assert changed["version"] > seen
            assert changed["nodes"]
            seen = changed["version"]
            for node in changed["nodes"]:
                assert statuses.get(node["id"]) != node["status"]
                statuses[node["id"]] = node["status"]

    following = asyncio.create_task(follow())
    for _ in range(6):
        await looms.branch(loom_id, root, n=2)
    await following
    whole = await looms.loom(loom_id)
    assert {node["id"]: node["status"] for node in whole["nodes"][1:]} == statuses
    assert whole["version"] == seen


async def test_a_waiting_read_ends_when_its_time_is_over(looms):
    loom_id, _ = await looms.plant()
    waiting = asyncio.create_task(looms.loom(loom_id, since=1, wait=1))
    while not waiting.done():
        looms.api.ledger.loom_desk.look_after()
        await asyncio.sleep(0.001)
    assert (await waiting)["nodes"] == []


async def test_a_fifth_waiting_read_of_a_key_is_answered_at_once(looms):
    loom_id, root = await looms.plant()
    waiting = [asyncio.create_task(looms.loom(loom_id, since=1, wait=30)) for _ in range(4)]
    await until(lambda: len(looms.api.ledger.loom_desk._reads._waits) == 4)
    answer = await looms.http.get(f"/v1/looms/{loom_id}", params={"since": 1, "wait": 30})
    assert (answer.headers["x-acs-longpoll"], answer.headers["retry-after"]) == ("declined", "3")
    await looms.branch(loom_id, root)
    assert all(changed["nodes"] for changed in await asyncio.gather(*waiting))


# -- deleting


async def test_a_deleted_node_takes_its_subtree_and_their_texts(looms):
    loom_id, root = await looms.plant(title="Skies")
    kept, doomed = await looms.grow(loom_id, root, n=2)
    (child,) = await looms.grow(loom_id, doomed["id"])
    before = looms.blobs()
    answer = await looms.delete(loom_id, doomed["id"])
    assert answer.json() == {"id": doomed["id"], "object": "node", "deleted": [doomed["id"], child["id"]]}
    assert list(await looms.nodes(loom_id)) == [root, kept["id"]]
    await until(lambda: looms.blobs() == before - 3)  # two Nodes and a Branch
    assert (await looms.delete(loom_id, child["id"])).status_code == 404


async def test_deleting_a_loom_erases_all_its_texts(looms):
    loom_id, root = await looms.plant(title="Skies")
    await looms.grow(loom_id, root, n=2)
    looms.engine.step_s = 0.01
    await looms.branch(loom_id, root, max_tokens=1000)
    await looms.running_in_engine(1)
    answer = await looms.delete(loom_id)
    assert answer.json() == {"id": loom_id, "object": "loom", "deleted": True}
    await until(lambda: looms.blobs() == 0)
    assert (await looms.http.get(f"/v1/looms/{loom_id}")).status_code == 404
    assert (await looms.http.get("/v1/looms")).json()["data"] == []
    await until(lambda: len(looms.events(RESOLVED)) == 2)


async def test_a_running_branch_whose_nodes_are_deleted_is_stopped_and_pays_for_what_it_made(looms):
    looms.engine.step_s = 0.01
    loom_id, root = await looms.plant()
    (node,) = await looms.branch(loom_id, root, max_tokens=1000)
    await looms.running_in_engine(1)
    assert (await looms.delete(loom_id, node)).status_code == 200
    await until(lambda: len(looms.events(RESOLVED)) == 1)
    (settled,) = looms.events(RESOLVED)
    assert settled.http_status is None
    assert settled.completion_tokens < 1000
    assert list(await looms.nodes(loom_id)) == [root]


async def test_one_of_several_nodes_deleted_while_they_grow_leaves_the_others(looms):
    looms.engine.step_s = 0.01
    loom_id, root = await looms.plant()
    first, second = await looms.branch(loom_id, root, n=2)
    await looms.running_in_engine(2)
    await looms.delete(loom_id, first)
    await looms.ended(loom_id)
    nodes = await looms.nodes(loom_id)
    assert list(nodes) == [root, second]
    assert nodes[second]["status"] == "done"
    await until(lambda: looms.blobs() == 3)  # root, Branch, second


# -- titles and lists


async def test_a_title_can_be_changed_and_taken_away(looms):
    loom_id, _ = await looms.plant(title="Skies")
    for title, blobs in (("Seas", 2), (None, 1)):
        answer = await looms.http.patch(f"/v1/looms/{loom_id}", json={"title": title})
        assert answer.json() == {name: value for name, value in (await looms.loom(loom_id)).items() if name != "nodes"}
        assert answer.json()["title"] == title
        await until(lambda: looms.blobs() == blobs)  # noqa: B023


async def test_looms_are_listed_newest_first_page_by_page(looms):
    made = [(await looms.plant(title=str(number)))[0] for number in range(3)]
    page = (await looms.http.get("/v1/looms", params={"limit": 2})).json()
    assert ([loom["id"] for loom in page["data"]], page["has_more"]) == (made[:0:-1], True)
    assert [loom["title"] for loom in page["data"]] == ["2", "1"]
    rest = (await looms.http.get("/v1/looms", params={"after": made[1]})).json()
    assert ([loom["id"] for loom in rest["data"]], rest["has_more"]) == (made[:1], False)


# -- sending again


async def test_a_branch_sent_again_under_its_key_is_answered_as_before_and_grown_once(looms):
    loom_id, root = await looms.plant()
    first = await looms.ask(loom_id, root, headers={"Idempotency-Key": "one"}, n=2)
    again = await looms.ask(loom_id, root, headers={"Idempotency-Key": "one"}, n=2)
    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    await looms.ended(loom_id)
    assert len(looms.events(Ledger.HoldPlaced)) == 1
    other = await looms.ask(loom_id, root, headers={"Idempotency-Key": "one"}, n=3)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")


async def test_a_branch_sent_again_is_answered_as_before_even_when_its_node_is_deleted(looms):
    loom_id, root = await looms.plant()
    (node,) = await looms.grow(loom_id, root)
    first = await looms.ask(loom_id, node["id"], headers={"Idempotency-Key": "one"})
    await looms.delete(loom_id, node["id"])
    again = await looms.ask(loom_id, node["id"], headers={"Idempotency-Key": "one"})
    assert (again.status_code, again.json()) == (202, first.json())


async def test_a_loom_planted_again_under_its_key_is_one(looms):
    body = {"prompt": PROMPT}
    first, again = [await looms.http.post("/v1/looms", json=body, headers={"Idempotency-Key": "one"}) for _ in range(2)]
    assert (first.json(), first.headers["location"]) == (again.json(), again.headers["location"])
    assert len(looms.events(Loom.Created)) == 1


# -- import


def fruit_of(loom):
    """What two Looms have in common when one was made of the other."""
    place = {node["id"]: number for number, node in enumerate(loom["nodes"])}
    same = ("text", "token_ids", "parent_token", "model", "sampling", "finish_reason", "usage", "logprobs", "status")
    return [[place.get(node["parent_id"]), *(node[name] for name in same)] for node in loom["nodes"]]


async def test_a_loom_imported_from_another_is_the_same_and_grows_on(looms):
    loom_id, root = await looms.plant(title="Skies")
    first, _ = await looms.grow(loom_id, root, n=2, seed=1, logprobs=2)
    (inside,) = await looms.grow(loom_id, first["id"], at_token=2, seed=2, logprobs=0)
    exported = await looms.loom(loom_id)
    answer = await looms.http.post("/v1/looms", json={"title": "Copy", "nodes": exported["nodes"]})
    assert answer.status_code == 201, answer.text
    copy = await looms.loom(answer.json()["id"])
    assert answer.json() == copy
    assert (copy["title"], copy["version"]) == ("Copy", 2)
    assert fruit_of(copy) == fruit_of(exported)
    at = [node["id"] for node in exported["nodes"]].index(inside["id"])
    (ours,) = await looms.grow(copy["id"], copy["nodes"][at]["id"], seed=9)
    (theirs,) = await looms.grow(loom_id, inside["id"], seed=9)
    assert ours["token_ids"] == theirs["token_ids"]
    asked = looms.events(Loom.BranchAsked)
    assert asked[-1].path_logprob == asked[-2].path_logprob == -11.0 - 5.5 * 3  # the fake engine's, token by token


async def test_a_prompt_that_spells_special_tokens_out_is_imported_as_it_was_sent(looms):
    tokenizer = looms.api.services.models["toy"].tokenizer
    special = tokenizer.token_texts[0]
    loom_id, _ = await looms.plant(f"{special}The sky")
    exported = await looms.loom(loom_id)
    answer = await looms.http.post("/v1/looms", json={"prompt": None, "nodes": exported["nodes"]})
    assert answer.status_code == 201, answer.text
    assert answer.json()["nodes"][0]["text"] == exported["nodes"][0]["text"] == f"{special}The sky"


async def test_texts_alone_are_tokenised_segment_by_segment(looms):
    nodes = [{"id": "a", "text": "The sky"}, {"id": "b", "parent_id": "a", "text": " is blue"}]
    loom = (await looms.http.post("/v1/looms", json={"nodes": nodes})).json()
    tokenizer = looms.api.services.models["toy"].tokenizer
    assert loom["nodes"][0]["token_ids"] == tokenizer.encode("The sky")
    assert loom["nodes"][1]["token_ids"] == tokenizer.encode(" is blue", add_special_tokens=False)
    assert await looms.text(loom["id"], loom["nodes"][1]["id"]) == "The sky is blue"


@pytest.mark.parametrize(
    ("nodes", "param"),
    [
        ([], "nodes"),
        ([{"id": "a"}], "nodes[0].text"),
        ([{"id": "a", "text": "A", "parent_id": "b"}], "nodes[0].parent_id"),
        ([{"id": "a", "text": "A"}, {"id": "b", "text": "B"}], "nodes[1].parent_id"),
        ([{"id": "a", "text": "A"}, {"id": "a", "text": "B", "parent_id": "a"}], "nodes[1].id"),
        ([{"id": "a", "text": "A"}, {"id": "b", "text": "B", "parent_id": "c"}], "nodes[1].parent_id"),
        ([{"id": "a", "text": "A"}, {"id": "b", "text": "B", "parent_id": "a", "parent_token": 99}],
         "nodes[1].parent_token"),
        ([{"id": "a", "token_ids": [999_999]}], "nodes[0].token_ids"),
        ([{"id": "a", "text": "B", "token_ids": [300]}], "nodes[0].text"),
        ([{"id": "a", "text": "A", "status": "pending"}], "nodes[0].status"),
        ([{"id": "a", "text": "A", "logprobs": {"tokens": [], "token_logprobs": [], "top_logprobs": [],
           "top_token_ids": []}}], "nodes[0].logprobs"),
    ],
    ids=repr,
)  # fmt: skip
async def test_nodes_that_make_no_tree_are_refused(looms, nodes, param):
    answer = await looms.http.post("/v1/looms", json={"nodes": nodes})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert looms.blobs() == 0
