"""Tensors as the API sends and takes them: `decode` what `output_residual_stream` brought, `encode` what
`apply_steering_vectors` shall add. Needs NumPy and zstandard, nothing else.

    from acs import tensors

    stream = tensors.decode(completion["activations"]["residual_stream"])  # [layers, positions, hidden]
    body["apply_steering_vectors"] = [{"activations": tensors.encode(vector), "layer_indices": [12]}]

The envelope is that of vllm-lens: {"data", "dtype", "original_dtype", "shape", "compression"}. `data` is base64 of the
zstd-compressed bytes, C order, little-endian; bfloat16 travels as its bit pattern in int16.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any

import numpy as np
import zstandard

LEVEL = 1  # activations are nearly noise: higher levels gain little and cost much
_STORED = {  # original_dtype -> dtype, and how its bytes are read
    "torch.bfloat16": ("int16", "<u2"),
    "torch.float16": ("float16", "<f2"),
    "torch.float32": ("float32", "<f4"),
    "torch.float64": ("float64", "<f8"),
}


def decode(envelope: dict[str, Any], max_bytes: int | None = None) -> np.ndarray:
    """The tensor of an envelope. bfloat16 comes as float32, which holds every value of it exactly; other dtypes as
    they are.

    Raises ValueError, its message going on after the envelope's name ("… holds fewer bytes than its shape"), when the
    envelope is broken or its tensor is larger than `max_bytes`. No more memory is used than its shape says.
    """
    if not isinstance(envelope, dict):
        raise ValueError("must be an envelope")
    original = "torch.float32" if envelope.get("original_dtype") is None else envelope["original_dtype"]
    stored = _STORED.get(original) if isinstance(original, str) else None
    if stored is None or envelope.get("dtype") != stored[0]:
        raise ValueError(f"has the dtype {envelope.get('dtype')!r:.50} of {original!r:.50}, which is none of ours")
    read_as = np.dtype(stored[1])
    shape = envelope.get("shape")
    if not isinstance(shape, list) or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("has a shape that is no list of sizes")
    size = math.prod(shape) * read_as.itemsize
    if max_bytes is not None and size > max_bytes:
        raise ValueError(f"holds {size:,} bytes; at most {max_bytes:,}"[:200])
    values = np.frombuffer(_bytes(envelope, size), read_as).reshape(shape)
    if original == "torch.bfloat16":
        return (values.astype("<u4") << 16).view("<f4")
    return values


def encode(array: np.ndarray, *, bfloat16: bool = False) -> dict[str, Any]:
    """The envelope of an array: float16, float32 and float64 as they are, anything else as float32. With `bfloat16`
    half the bytes, each value rounded to the nearest.
    """
    array = np.asarray(array)
    if bfloat16:
        bits = np.ascontiguousarray(array, "<f4").view("<u4")
        nearest = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
        rounded = np.where(np.isnan(array), np.uint16(0x7FC0), nearest).astype("<u2")
        return envelope_of(rounded.tobytes(), "bfloat16", array.shape)
    if array.dtype.name not in ("float16", "float32", "float64"):
        array = array.astype("<f4")
    return envelope_of(array.astype(array.dtype.newbyteorder("<")).tobytes(), array.dtype.name, array.shape)


def envelope_of(data: bytes | memoryview, dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """The envelope of raw bytes: C order, little-endian, `dtype` as torch calls it ("bfloat16", "float32", …)."""
    return {
        "data": base64.b64encode(zstandard.ZstdCompressor(level=LEVEL).compress(data)).decode(),
        "dtype": _STORED[f"torch.{dtype}"][0],
        "original_dtype": f"torch.{dtype}",
        "shape": list(shape),
        "compression": "zstd",
    }


def _bytes(envelope: dict[str, Any], size: int) -> bytes:
    data, compression = envelope.get("data"), envelope.get("compression")
    if not isinstance(data, str):
        raise ValueError("has no data")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("has data that is no base64") from None
    if compression == "zstd":
        try:
            with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
                raw = reader.read(size + 1)  # a bomb ends here
        except zstandard.ZstdError:
            raise ValueError("has data that is no zstd frame") from None
    elif compression is not None:
        raise ValueError("has a compression other than zstd")
    if len(raw) != size:
        raise ValueError(f"holds {'more' if len(raw) > size else 'fewer'} bytes than its shape")
    return raw
