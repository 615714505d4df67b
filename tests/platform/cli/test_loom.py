"""Looms in files and on the terminal."""

import json
import re

import pytest

from acs.platform.cli.errors import CommandFailed
from acs.platform.cli.loom_drawing import drawn
from acs.platform.cli.loom_file import read_file


def node(id, parent_id=None, text="A", logprobs=None, **fields):
    whole = {"id": id, "parent_id": parent_id, "parent_token": None, "status": "done", "text": text, "error": None}
    return {**whole, "logprobs": logprobs, **fields}


def known(**tokens):
    return {"tokens": list(tokens), "token_logprobs": list(tokens.values())}


TREE = [
    node("root", text="The sky"),
    node("a", "root", text=" is\nblue", logprobs=known(**{" is": -0.1, "\nblue": -3.0})),
    node("b", "root", status="running", text=None),
    node("a1", "a", parent_token=1, text=" red"),
    node("a2", "a", status="failed", text=None, error={"message": "It died."}),
]


def test_a_tree_is_drawn_with_each_node_under_its_parent():
    assert list(drawn(TREE, colour=False)) == [
        "The sky  root",
        "├─ " + r" is\nblue  -3.10 a",
        "│  ├─ @1  red  a1",
        "│  └─ ✗ failed: It died.  a2",
        "└─ … running  b",
    ]


def test_likelier_tokens_are_greener_and_nothing_else_changes():
    plain, coloured = list(drawn(TREE, colour=False)), list(drawn(TREE, colour=True))
    assert [re.sub("\x1b\\[[0-9;]*m", "", line) for line in coloured] == plain
    likely, unlikely = re.findall("\x1b\\[38;5;([0-9]+)m", coloured[1])
    assert (likely, unlikely) == ("40", "88")


def test_what_a_terminal_would_obey_is_shown_and_not_sent():
    (line,) = drawn([node("root", text="\x1b[2J\r\x07é")], colour=False)
    assert line == r"\x1b[2J\r\x07é  root"


def test_a_tree_deeper_than_any_stack_is_drawn():
    deep = [node("0"), *(node(str(number), str(number - 1)) for number in range(1, 5000))]
    assert len(list(drawn(deep, colour=False))) == 5000


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "tree.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_an_export_is_read_without_what_is_not_done(file):
    title, nodes = read_file(file({"object": "loom", "title": "Skies", "nodes": TREE}), None)
    assert title == "Skies"
    assert [one["id"] for one in nodes] == ["root", "a", "a1"]


def test_a_tree_of_socketteers_loom_is_flattened_parents_first(file):
    leaf = {"id": "x", "text": " blue", "children": [], "open": 1, "visited": True}
    empty = {"id": "y", "text": "", "children": [{"text": " green", "children": []}]}
    tree = {"root": {"text": "The sky", "mutable": False, "children": [leaf, empty]}, "chapters": {}, "canonical": []}
    title, nodes = read_file(file(tree), None)
    assert title == "tree"
    assert nodes == [
        {"id": "0", "parent_id": None, "text": "The sky"},
        {"id": "1", "parent_id": "0", "text": " blue"},
        {"id": "2", "parent_id": "0", "text": " green"},
    ]


def test_a_root_without_text_is_its_one_child_or_is_given_one(file):
    one = {"root": {"text": "", "children": [{"text": "A", "children": []}]}}
    assert read_file(file(one), None)[1] == [{"id": "0", "parent_id": None, "text": "A"}]
    two = {"root": {"text": "", "children": [{"text": "A", "children": []}, {"text": "B"}]}}
    with pytest.raises(CommandFailed, match="--root"):
        read_file(file(two), None)
    assert [(one["parent_id"], one["text"]) for one in read_file(file(two), "\n")[1]] == [
        (None, "\n"),
        ("0", "A"),
        ("0", "B"),
    ]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"root": "A"}', '{"object": "loom"}'])
def test_any_other_file_is_refused_in_one_sentence(file, content):
    with pytest.raises(CommandFailed):
        read_file(file(content), None)
