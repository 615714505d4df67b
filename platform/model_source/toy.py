"""A Llama of a few random megabytes with a tokenizer of its own, made here without torch or network.

The same seed gives the same bytes on every machine. The weights are spread widely enough that logits differ clearly,
so that greedy answers do not hang on rounding. The byte-level vocabulary knows English only: any other character is
two to four tokens, which is what tests of broken characters need.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<|bos|>", "<|endoftext|>"
VOCABULARY = 2048
CONTEXT = 2048
HIDDEN, BLOCKS, HEADS, KV_HEADS, HEAD, INNER = 128, 4, 4, 2, 32, 256
LOGIT_SPREAD = 2.5  # standard deviation of the logits, about a real model's


def write(folder: Path, seed: int) -> None:
    """config.json, model.safetensors, tokenizer.json and tokenizer_config.json into `folder`."""
    tokenizer().save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    _write_json(folder / "config.json", _config())
    _write_safetensors(folder / "model.safetensors", weights(seed))


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = (Path(__file__).parent / "toy_text.txt").read_text(encoding="utf-8")
    made.train_from_iterator(text.split("\n\n"), trainer)
    made.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, made.token_to_id(BOS))]
    )
    return made


def weights(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """bfloat16 bit patterns (uint16) by Hugging Face's names for Llama."""
    draw = np.random.RandomState(seed)  # the legacy generator: its stream is frozen for good

    def normal(rows: int, columns: int, spread: float) -> np.ndarray[Any, Any]:
        return _bfloat16(draw.standard_normal((rows, columns)) * spread)

    ones = _bfloat16(np.ones(HIDDEN))
    made = {"model.embed_tokens.weight": normal(VOCABULARY, HIDDEN, 1.0)}
    for block in range(BLOCKS):
        name = f"model.layers.{block}"
        made |= {
            f"{name}.input_layernorm.weight": ones,
            f"{name}.self_attn.q_proj.weight": normal(HEADS * HEAD, HIDDEN, HIDDEN**-0.5),
            f"{name}.self_attn.k_proj.weight": normal(KV_HEADS * HEAD, HIDDEN, HIDDEN**-0.5),
            f"{name}.self_attn.v_proj.weight": normal(KV_HEADS * HEAD, HIDDEN, HIDDEN**-0.5),
            f"{name}.self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD, HIDDEN**-0.5),
            f"{name}.post_attention_layernorm.weight": ones,
            f"{name}.mlp.gate_proj.weight": normal(INNER, HIDDEN, HIDDEN**-0.5),
            f"{name}.mlp.up_proj.weight": normal(INNER, HIDDEN, HIDDEN**-0.5),
            f"{name}.mlp.down_proj.weight": normal(HIDDEN, INNER, INNER**-0.5),
        }
    return made | {
        "model.norm.weight": ones,
        "lm_head.weight": normal(VOCABULARY, HIDDEN, LOGIT_SPREAD * HIDDEN**-0.5),
    }


def _bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rounded to nearest even; no value here is infinite or NaN."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": BLOCKS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,  # tied, a random model would repeat its last token for ever
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "bfloat16",
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_safetensors(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    """The format: length of the header (8 bytes, little endian), the header (JSON), the tensors' bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.astype("<u2").tobytes())
