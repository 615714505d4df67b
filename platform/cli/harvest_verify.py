"""Rows of a downloaded harvest against what a Completion reads of the same tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from acs import tensors
from acs.platform.cli.api import Api
from acs.platform.cli.errors import CommandFailed

TINY = np.finfo(np.float32).tiny


async def verify_sample(api: Api, folder: Path, sample: int) -> dict[str, Any]:
    """`sample`: prompts, drawn by chance. The least cosine of a row with the Completion's, and the largest difference
    of two numbers. Raises CommandFailed.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except OSError as error:
        raise CommandFailed(f"{folder} has no manifest: {error.strerror}.") from None
    if manifest["contents"] != "residual_stream" or manifest["positions"] != "all":
        raise CommandFailed("Only harvests of whole rows at all positions can be read again by a Completion.")
    if sample < 1:
        raise CommandFailed("--sample must be 1 or more.")
    drawn = sorted(random.sample(range(manifest["n_prompts"]), min(sample, manifest["n_prompts"])))
    least, largest, rows = 1.0, 0.0, 0
    for index in drawn:
        ids, ours = _rows_of(folder, manifest, index)
        body = {
            "model": manifest["model"],
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0,
            "output_residual_stream": manifest["layers"],
        }
        answer = await api.asked("POST", "/completions", json=body)
        theirs = tensors.decode(answer["activations"]["residual_stream"])
        if not np.isfinite(ours).all():
            raise CommandFailed(f"Prompt {index} has numbers that are not finite.")
        cosine = (ours * theirs).sum(-1) / np.maximum(np.linalg.norm(ours, axis=-1), TINY)
        cosine /= np.maximum(np.linalg.norm(theirs, axis=-1), TINY)  # a row of zeros is like none
        least, largest = min(least, float(cosine.min())), max(largest, float(np.abs(ours - theirs).max()))
        rows += ours.shape[0] * ours.shape[1]
    return {"prompts": len(drawn), "rows": rows, "least_cosine": round(least, 9), "largest_difference": largest}


def _rows_of(folder: Path, manifest: Any, index: int) -> tuple[list[int], np.ndarray]:
    """The token ids of a prompt, and its rows: float32 [layers, positions, hidden]."""
    import pyarrow.parquet as pq  # of the server's packages

    columns = [f"layer_{layer}" for layer in manifest["layers"]]
    files = [str(folder / shard["file"]) for shard in manifest["shards"]]
    wanted = ["position", "token_id", *columns]
    table = pq.read_table(files, columns=wanted, filters=[("prompt_index", "=", index)]).sort_by("position")
    if table["position"].to_pylist() != list(range(table.num_rows)):
        raise CommandFailed(f"Prompt {index} does not have each of its positions once.")
    numbers = [table[column].combine_chunks().flatten().to_numpy() for column in columns]
    return table["token_id"].to_pylist(), np.stack([one.reshape(table.num_rows, -1) for one in numbers])
