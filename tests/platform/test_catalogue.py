"""The catalogue: what the shipped files promise, and the sentence each mistake gets."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from acs.platform.catalogue import Catalogue, CatalogueError
from acs.platform.settings import SHIPPED_CATALOGUES

ENTRY = {
    "served_model_name": '"a/b"',
    "description": '"One."',
    "source": '"toy:0"',
    "created": "1",
    "owned_by": '"a"',
}


def load(folder: Path, *more: str, head: str = "[models.one]", **fields: str | None) -> Catalogue:
    """A catalogue of one entry; a field given as None is left out, `more` are lines after the fields."""
    lines = [f"{name} = {value}" for name, value in {**ENTRY, **fields}.items() if value is not None]
    path = folder / "catalogue.toml"
    path.write_text("\n".join([head, *lines, *more]))
    return Catalogue.load(path)


@pytest.mark.parametrize("path", sorted(SHIPPED_CATALOGUES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_catalogue_loads_and_travels_between_processes(path: Path) -> None:
    catalogue = Catalogue.load(path)
    assert len(catalogue) > 0
    assert pickle.loads(pickle.dumps(catalogue)) == catalogue


def test_the_shipped_catalogues_hold_the_promised_models() -> None:
    ids = {path.stem: list(Catalogue.load(path)) for path in SHIPPED_CATALOGUES.glob("*.toml")}
    assert ids == {
        "default": ["smollm2-135m"],
        "toy": ["toy"],
        "fake": ["fake"],
        "gpu": ["llama-8b", "llama-70b"],
    }


def test_the_default_model_says_that_it_is_not_a_base_model() -> None:
    model = Catalogue.load(SHIPPED_CATALOGUES / "default.toml")["smollm2-135m"]
    assert "SmolLM2-135M-Instruct" in model.served_model_name
    assert "Q4_1" in model.served_model_name
    assert "stands in for a base model" in model.description


def test_what_an_entry_leaves_out_has_defaults(tmp_path: Path) -> None:
    model = load(tmp_path)["one"]
    assert (model.engine_class, model.activations, dict(model.engine), dict(model.env)) == ("vllm", False, {}, {})
    assert (model.replicas.min, model.replicas.max, model.resources.num_cpus) == (1, 1, 1.0)
    assert model.price.prompt_micro_usd_per_million == 0


def test_slots_are_max_replicas_times_target_ongoing(tmp_path: Path) -> None:
    assert load(tmp_path, "replicas = {max = 3, target_ongoing = 5}")["one"].slots == 15


def test_engine_arguments_and_variables_pass_through_untouched(tmp_path: Path) -> None:
    model = load(tmp_path, "engine = {max_model_len = 7, x = [1]}", 'env = {A_B = "c"}')["one"]
    assert model.engine == {"max_model_len": 7, "x": [1]}
    assert model.env == {"A_B": "c"}


def test_a_folder_is_taken_relative_to_the_catalogue(tmp_path: Path) -> None:
    model = load(tmp_path, source='"folder:weights"')["one"]
    assert model.checkpoint(Path("/elsewhere")) == tmp_path.resolve() / "weights"


def test_another_source_under_the_same_id_is_another_folder(tmp_path: Path) -> None:
    first, second = load(tmp_path)["one"], load(tmp_path, source='"toy:1"')["one"]
    assert first.checkpoint(tmp_path) != second.checkpoint(tmp_path)


TAPPED = ("activations = true", 'engine = {dtype = "bfloat16", enforce_eager = true}')


def test_activations_need_an_eager_engine_a_dtype_of_the_codec_and_one_pipeline_stage(tmp_path: Path) -> None:
    assert load(tmp_path, *TAPPED)["one"].activations
    for engine, more, said in (
        ('{dtype = "float32"}', "", "need engine.enforce_eager = true"),
        ("{enforce_eager = true}", "", "need engine.dtype"),
        ('{dtype = "float16", enforce_eager = true}', "", "need engine.dtype"),
        ('{dtype = "float32", enforce_eager = true}', "resources = {pipeline_parallel_size = 2}", "need resources"),
    ):
        with pytest.raises(CatalogueError, match=f"models, one: activations {said}"):
            load(tmp_path, "activations = true", f"engine = {engine}", more)


REVISION = "0123456789" * 4


@pytest.mark.parametrize(
    "source",
    ["package:a-b==1.0/c/d.gguf", f"hub:a/b@{REVISION}", "folder:/x", "toy:12"],
)
def test_each_form_of_source_is_accepted(tmp_path: Path, source: str) -> None:
    assert load(tmp_path, source=f'"{source}"')["one"].source == source


@pytest.mark.parametrize(
    ("fields", "more", "said"),
    [
        ({"served_model_name": None}, (), "models, one: served_model_name is missing"),
        ({"description": '""'}, (), "models, one: description is '', but must be a string that is not empty"),
        ({"created": "1.5"}, (), "models, one: created is 1.5, but must be a whole number"),
        ({"created": "true"}, (), "models, one: created is True, but must be a whole number"),
        ({"activations": "1"}, (), "models, one: activations is 1, but must be true or false"),
        ({"colour": '"red"'}, (), "models, one: unknown field colour"),
        ({"engine_class": '"real"'}, (), "models, one: engine_class is 'real', neither"),
        ({"engine": "3"}, (), "models, one: engine must be a table"),
        ({}, ("engine = {trust_remote_code = true}",), "models, one, engine: trust_remote_code is refused"),
        ({}, ("engine = {trust_remote_code = false}",), "models, one, engine: trust_remote_code is refused"),
        ({}, ("engine = {tensor_parallel_size = 2}",), "engine: tensor_parallel_size is refused"),
        ({}, ('env = {lower = "1"}',), "models, one, env: lower must be"),
        ({}, ("env = {A = 1}",), "models, one, env: A must be"),
        ({}, ("replicas = {min = 2}",), "models, one: replicas.max is 1, below replicas.min, 2"),
        ({}, ("replicas = {min = -1}",), "models, one, replicas: min is -1, below 0"),
        ({}, ("replicas = {max = 0}",), "models, one, replicas: max is 0, below 1"),
        ({}, ("replicas = {target = 1}",), "models, one, replicas: unknown field target"),
        ({}, ("resources = {num_cpus = -0.5}",), "models, one, resources: num_cpus is -0.5, below 0"),
        ({}, ("resources = {num_gpus = nan}",), "models, one, resources: num_gpus is nan"),
        ({}, ("resources = {tensor_parallel_size = 0}",), "resources: tensor_parallel_size is 0, below 1"),
        ({}, ("price = {prompt_micro_usd_per_million = 0.5}",), "prompt_micro_usd_per_million is 0.5, but must be"),
        ({"source": '"toy:x"'}, (), "models, one: source 'toy:x' must read toy:<seed>"),
        ({"source": '"hub:a/b@main"'}, (), "source 'hub:a/b@main' must read hub:<owner>/<repository>@<revision of 40"),
        ({"source": f'"hub:a/b@{REVISION[:39]}"'}, (), "must read hub:"),
        ({"source": '"package:a/b.gguf"'}, (), "must read package:"),
        ({"source": '"package:a==1/b.bin"'}, (), "must read package:"),
        ({"source": '"folder:"'}, (), "must read folder:<path>"),
        ({"source": '"https://x"'}, (), "must begin with package:, hub:, folder: or toy:"),
    ],
)
def test_a_mistake_is_one_sentence_with_file_entry_and_field(
    tmp_path: Path, fields: dict[str, str | None], more: tuple[str, ...], said: str
) -> None:
    with pytest.raises(CatalogueError) as caught:
        load(tmp_path, *more, **fields)
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(tmp_path / "catalogue.toml"))
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no model"),
        ("x = ", "is not TOML"),
        ("[modules.one]", "unknown field modules"),
        ('[models]\none = "two"', "one must be a table"),
        ('[models."a b"]', "an id has 1 to 64 letters"),
    ],
)
def test_a_file_that_is_no_catalogue_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(text)
    with pytest.raises(CatalogueError, match=said):
        Catalogue.load(path)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="cannot be read: No such file"):
        Catalogue.load(tmp_path / "none.toml")


def test_reading_a_catalogue_loads_nothing_heavy() -> None:
    code = "import acs.platform.models, sys; print({'torch', 'vllm', 'pydantic', 'numpy', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
