"""A model's tokenizer and the sizes of the model, read from its checkpoint folder without torch or vLLM."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

UNFINISHED = "\ufffd"  # how bytes that are no character are decoded


def token_bytes_text(data: bytes) -> str:
    """How a token that is not text by itself is written: `bytes:\\xe2\\x80`, so that no entry of a map is lost."""
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _byte_level_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level BPE vocabularies (GPT-2's table, as `tokenizers` has it)."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in kept}
    rest = (byte for byte in range(256) if byte not in set(kept))
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(rest)})
    return alphabet


class ModelTokenizer:
    """Text to token ids and back, for one model."""

    def __init__(self, checkpoint: Path) -> None:
        """`checkpoint` is a prepared folder: config.json, tokenizer.json, perhaps tokenizer_config.json."""
        self._tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
        self._folder = checkpoint

    @property
    def vocab_size(self) -> int:
        """Of the model: ids the engine may be asked about. The tokenizer may know fewer."""
        return int(self.config["vocab_size"])

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: list[int]) -> str:
        """The text of the ids, special tokens included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def settled(self, ids: list[int]) -> str:
        """The text of the ids as a Completion gives it: special tokens left out, and what may be an unfinished
        character at the end. What ids add to those before them is the rest of it, so that parts add up to the whole.
        """
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text.rstrip(UNFINISHED)

    @cached_property
    def sha256(self) -> str:
        """Of the file that makes it: models with the same have the same tokens."""
        return hashlib.sha256((self._folder / "tokenizer.json").read_bytes()).hexdigest()

    def pieces(self, ids: list[int], *, special: bool) -> list[str]:
        """What each token adds to the text of all; empty while a character is incomplete.

        `special`: whether special tokens are text too (they are not part of a text that was tokenised).
        """
        stream = DecodeStream(skip_special_tokens=not special)
        return [stream.step(self._tokenizer, token_id) or "" for token_id in ids]

    @cached_property
    def token_texts(self) -> list[str]:
        """The text of every id by itself: what `tokens`, `top_logprobs` and `decoded_token` show."""
        added = {i: token.content for i, token in self._tokenizer.get_added_tokens_decoder().items()}
        byte_level = "ByteLevel" in json.dumps(json.loads((self._folder / "tokenizer.json").read_text())["decoder"])
        alphabet = _byte_level_alphabet()
        return [self._text_of(i, added, alphabet if byte_level else None) for i in range(self.vocab_size)]

    def _text_of(self, token_id: int, added: dict[int, str], alphabet: dict[str, int] | None) -> str:
        if token_id in added:
            return added[token_id]
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:  # the model's vocabulary is padded beyond the tokenizer's
            return f"token_id:{token_id}"
        if alphabet is not None:
            data = bytes(alphabet[character] for character in piece)
        elif piece.startswith("<0x") and piece.endswith(">") and len(piece) == 6:
            data = bytes([int(piece[3:5], 16)])
        else:
            return str(piece).replace("▁", " ")
        try:
            return data.decode()
        except UnicodeDecodeError:
            return token_bytes_text(data)

    def info(self) -> dict[str, Any]:
        """The checkpoint's own tokenizer_config.json, or an empty object; base models have no chat template."""
        path = self._folder / "tokenizer_config.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        found.pop("chat_template", None)
        # "No limit" is written as 10**30, which is no number to most readers of JSON.
        return {name: value for name, value in found.items() if not (isinstance(value, int) and value >= 2**63)}
