"""Made-up activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from acs.storage.shards.layout import Layout
from acs.storage.shards.writer import PromptRows

PROVENANCE = {"harvest_id": "hrv_1", "model": "toy", "dtype": "bfloat16"}


def layout(layers: Sequence[int] = (0, 2), width: int = 5) -> Layout:
    return Layout(tuple(layers), width, PROVENANCE)


def prompt(index: int, values: np.ndarray[Any, Any]) -> PromptRows:
    """`values`: [layers, rows, width], one row for each position from 0."""
    positions = np.arange(values.shape[1], dtype=np.int32)
    return PromptRows(index, values, positions, 1000 * index + positions, [f"t{position}" for position in positions])


def prompts(lengths: Sequence[int], layers: int = 2, width: int = 5, seed: int = 0) -> list[PromptRows]:
    """Of bfloat16, every pattern of bits but NaN and infinity."""
    chance = np.random.default_rng(seed)
    found = []
    for index, length in enumerate(lengths):
        bits = chance.integers(0, 2**16, (layers, length, width), dtype=np.uint16)
        bits[(bits & 0x7F80) == 0x7F80] = 0
        found.append(prompt(index, bits))
    return found


def as_float32(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """By way of the text of each number, not the way the writer does it."""
    return np.array([float.fromhex(_hex_of(int(word))) for word in bits.flat], np.float32).reshape(bits.shape)


def _hex_of(word: int) -> str:
    sign, exponent, fraction = word >> 15, (word >> 7) & 0xFF, word & 0x7F
    whole, power = (0, -126) if exponent == 0 else (1, exponent - 127)
    return f"{'-' if sign else ''}0x{whole}.{fraction << 1:02x}p{power}"
