"""Models whose blocks return one tensor are tapped too; one whose blocks return something else is found out."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from engine.running import Running, request, start, toy
from transformers import GPT2Config, GPT2LMHeadModel, StableLmConfig, StableLmForCausalLM

from acs.serve_apps.inference.tap.self_test import SelfTestFailed

pytestmark = pytest.mark.engine

SIZES = {"vocab_size": 2048, "bos_token_id": 0, "eos_token_id": 1}


def saved(model: torch.nn.Module, folder: Path, toy_checkpoint: Path) -> Path:
    model.eval().save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(toy_checkpoint / name, folder)
    return folder


async def started(checkpoint: Path, tensors: Path) -> Running:
    model = dataclasses.replace(toy(max_model_len=256), source=f"folder:{checkpoint}")
    return await start(model, checkpoint, tensors)


async def test_blocks_that_return_one_tensor(toy_checkpoint: Path, tmp_path: Path):
    torch.manual_seed(0)
    gpt2 = GPT2LMHeadModel(GPT2Config(n_positions=256, n_embd=128, n_layer=3, n_head=4, **SIZES))
    engine = await started(saved(gpt2, tmp_path / "gpt2", toy_checkpoint), tmp_path / "tensors")
    answer = await engine.run(request([5, 6, 7, 8], 6, capture=[0, 1, 2]))
    engine.engine.shutdown()
    streams = []
    hooks = [
        block.register_forward_hook(
            lambda _, __, output: streams.append(output[0] if isinstance(output, tuple) else output)
        )
        for block in gpt2.transformer.h
    ]
    with torch.inference_mode():
        gpt2(torch.tensor([[5, 6, 7, 8, *answer.choice.token_ids[:-1]]]))
    for hook in hooks:
        hook.remove()
    expected = torch.stack([stream.reshape(-1, 128) for stream in streams]).numpy()
    assert np.abs(answer.choice.captured - expected).max() < 1e-5 * np.abs(expected).max()


async def test_a_model_whose_blocks_return_something_else_does_not_start(toy_checkpoint: Path, tmp_path: Path):
    """A StableLM block returns the stream, and beside it what the stream was before: their sum means nothing."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = StableLmConfig(**SIZES, **sizes, num_key_value_heads=4, max_position_embeddings=256)
    checkpoint = saved(StableLmForCausalLM(config), tmp_path / "stablelm", toy_checkpoint)
    with pytest.raises(
        SelfTestFailed, match=r"at reading: what leaves Layer \d is not what the module after it is given"
    ):
        await started(checkpoint, tmp_path / "tensors")
