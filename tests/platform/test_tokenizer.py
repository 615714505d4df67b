"""Text and token ids of a model, from its checkpoint folder."""

import json
import shutil

import orjson
import pytest

from acs.platform.tokenizer import ModelTokenizer


@pytest.fixture
def tokenizer(toy_checkpoint):
    return ModelTokenizer(toy_checkpoint)


@pytest.mark.parametrize("text", ["The sky is", "😀 naïve 你好", "\ttabs\n\nlines  spaces "])
def test_a_text_comes_back_from_its_tokens(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert "".join(tokenizer.pieces(ids, special=True)) == text


def test_every_token_has_a_text_of_its_own(tokenizer):
    assert len(tokenizer.token_texts) == len(set(tokenizer.token_texts)) == tokenizer.vocab_size


def test_a_token_that_is_not_text_is_shown_by_its_bytes(tokenizer):
    ids = tokenizer.encode("😀", add_special_tokens=False)
    shown = [tokenizer.token_texts[token_id] for token_id in ids]
    assert all(text.startswith("bytes:\\x") for text in shown)
    written = "".join(text.removeprefix("bytes:").replace("\\x", "") for text in shown)
    assert bytes.fromhex(written).decode() == "😀"


def test_the_tokenizers_settings_can_be_written_as_json_whatever_the_checkpoint_says(toy_checkpoint, tmp_path):
    folder = shutil.copytree(toy_checkpoint, tmp_path / "checkpoint")
    settings = {
        "tokenizer_class": "LlamaTokenizer",
        "model_max_length": 10**30,
        "chat_template": "{{ }}",
        "eos_token": "x",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    info = ModelTokenizer(folder).info()
    assert json.loads(orjson.dumps(info)) == {"tokenizer_class": "LlamaTokenizer", "eos_token": "x"}
