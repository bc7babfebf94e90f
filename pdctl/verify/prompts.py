"""Fresh random prompts in token ids, so that no tokenizer is needed and no prefix cache knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

_LOW, _HIGH = 20, 240
"""Ids that every vocabulary has and that are rarely special."""
_SAME_TAIL = 4


@dataclass(frozen=True)
class PromptPair:
    """Two prompts of equal length whose last tokens are the same."""

    a: list[int]
    b: list[int]


def random_prompt(rng: random.Random, length: int) -> list[int]:
    """Return `length` random tokens."""
    return [rng.randrange(_LOW, _HIGH) for _ in range(length)]


def prompt_pair(rng: random.Random, length: int) -> PromptPair:
    """Return two prompts for a swap."""
    tail = random_prompt(rng, _SAME_TAIL)
    return PromptPair(random_prompt(rng, length - _SAME_TAIL) + tail, random_prompt(rng, length - _SAME_TAIL) + tail)


def lengths(max_model_len: int | None, *, big: bool) -> list[int]:
    """Return the prompt lengths of the swaps: several blocks of 16, none a multiple of it; `big` adds one that measures speed."""
    limit = (max_model_len or 1024) - 32
    wanted = [45, 77, 141, *([4001] if big else [])]
    fitting = [length for length in wanted if length <= limit]
    return fitting or [max(_SAME_TAIL + 4, limit)]
