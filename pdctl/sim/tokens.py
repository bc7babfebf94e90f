"""Tokens: a reversible tokenizer, and a next token that depends on all KV held so far.

The KV of a position is one number that depends on every token up to it, as in a causal transformer. A consumer with the KV of prompt A and
the last token of prompt B therefore goes on as A would; with damaged KV it goes on as neither.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES = 256
EOS = 2
_EOS_ONE_IN = 400
_MASK = (1 << 64) - 1
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_PIECES = re.compile(rb"\s?[^\s]+|\s+")


class Tokenizer:
    """Ids below 256 are bytes, the rest are words such as ` kalo`; any text survives encoding and decoding."""

    def __init__(self, vocabulary: int) -> None:
        self.size = max(BYTES + 16, vocabulary)
        self._words = [_word(number) for number in range(self.size - BYTES)]
        self._ids = {word: BYTES + number for number, word in enumerate(self._words)}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _PIECES.findall(text.encode("utf-8", "surrogatepass")):
            word = self._ids.get(piece)
            ids += [word] if word is not None else piece
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.piece(one) for one in ids).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < BYTES else self._words[token - BYTES]


def _word(number: int) -> bytes:
    first, rest = number % 70, number // 70
    text = _syllable(first)
    while True:
        text += _syllable(rest % 70)
        rest //= 70
        if not rest:
            return f" {text}".encode()


def _syllable(number: int) -> str:
    return _CONSONANTS[number % 14] + _VOWELS[number // 14 % 5]


class Model:
    """The simulated network."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._vocabulary = vocabulary
        self._start = _mix(int.from_bytes(hashlib.sha256(f"pdctl sim {seed}".encode()).digest()[:8], "little"), 1)

    def prefill(self, tokens: Sequence[int], kv: Sequence[int] = ()) -> array[int]:
        """Return the KV of all `tokens`, going on from `kv`, the KV of the first of them."""
        result = array("Q", kv)
        state = kv[-1] if len(kv) else self._start
        for token in tokens[len(kv) :]:
            state = _mix(state, token)
            result.append(state)
        return result

    def step(self, state: int, token: int) -> int:
        """Return the KV of one more token."""
        return _mix(state, token)

    def next_token(self, state: int, *, noise: int, may_end: bool) -> int:
        """Return the token after KV `state`; `noise` is 0 at temperature 0."""
        value = _mix(state, 0x5EED ^ noise)
        if may_end and value % _EOS_ONE_IN == 0:
            return EOS
        return BYTES + (value >> 16) % (self._vocabulary - BYTES)


def damage(kv: Sequence[int]) -> array[int]:
    """Return KV as it looks after it was overwritten on the way."""
    return array("Q", [value ^ 0xDEADBEEFDEADBEEF for value in kv])


def _mix(state: int, token: int) -> int:
    """One step of splitmix64 over both: cheap, and every bit of the input matters."""
    value = (state + 0x9E3779B97F4A7C15 * (token + 1)) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
