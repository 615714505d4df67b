"""The codec of Activations, as users have it: NumPy and zstandard alone."""

import subprocess
import sys

import numpy as np
import pytest
import zstandard

from acs import tensors

VECTOR = {  # bfloat16 [[0.5, -1.0, 3.140625]]: raw bytes 00 3f 80 bf 49 40
    "data": "KLUv/SAGMQAAAD+Av0lA",
    "dtype": "int16",
    "original_dtype": "torch.bfloat16",
    "shape": [1, 3],
    "compression": "zstd",
}


def test_the_known_envelope_is_decoded_and_encoded():
    values = tensors.decode(VECTOR)
    assert values.dtype == np.float32
    assert values.tolist() == [[0.5, -1.0, 3.140625]]
    encoded = tensors.encode(values, bfloat16=True)
    assert list(encoded) == list(VECTOR)
    assert tensors.decode(encoded).tolist() == values.tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_what_is_encoded_comes_back(dtype):
    array = np.linspace(-3, 3, 24).reshape(2, 3, 4).astype(dtype)
    back = tensors.decode(tensors.encode(array))
    assert back.dtype == array.dtype.newbyteorder("=")
    assert (back == array).all()


def test_an_array_that_is_not_contiguous_keeps_its_values():
    array = np.arange(12, dtype="f4").reshape(3, 4).T
    assert (tensors.decode(tensors.encode(array)) == array).all()
    assert (tensors.decode(tensors.encode(array, bfloat16=True)) == array).all()


def test_bfloat16_rounds_to_the_nearest_even_and_keeps_what_is_not_finite():
    halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, np.inf, -np.inf, np.nan], "f4")
    back = tensors.decode(tensors.encode(halfway, bfloat16=True))
    assert back[:2].tolist() == [1.0, 1 + 2**-6]
    assert back[3:5].tolist() == [np.inf, -np.inf]
    assert np.isnan(back[5])


def test_frames_without_a_content_size_and_the_oldest_envelope_are_read():
    import base64

    packer = zstandard.ZstdCompressor().compressobj()
    frame = packer.compress(np.float32(1.5).tobytes()) + packer.flush()
    streamed = {**tensors.encode(np.float32([1.5])), "data": base64.b64encode(frame).decode()}
    assert tensors.decode(streamed).tolist() == [1.5]
    oldest = {"data": base64.b64encode(np.float32(2.5).tobytes()).decode(), "dtype": "float32", "shape": [1]}
    assert tensors.decode(oldest).tolist() == [2.5]


def test_no_more_is_unpacked_than_is_allowed_and_the_shape_says():
    large = tensors.encode(np.zeros((1000, 1000), "f4"))
    with pytest.raises(ValueError, match="4,000,000 bytes; at most 1,000"):
        tensors.decode(large, max_bytes=1000)
    with pytest.raises(ValueError, match="more bytes than its shape"):
        tensors.decode({**large, "shape": [10]})


def test_it_imports_nothing_of_the_server():
    program = (
        "import acs.tensors, sys; print([m for m in sys.modules if m.split('.')[0] in ('torch', 'ray', 'pydantic')])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
