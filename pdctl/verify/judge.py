"""What a swap test means. Pure.

A producer prefills prompt A, the consumer is asked for prompt B with A's KV. Both have the same length and the same last tokens, so the output
follows A if the KV was used, B if it was ignored or recomputed, and neither if it was damaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Verdict = Literal["used", "unproven", "ignored", "damaged", "not moved", "inconclusive", "error"]
"""`unproven`: metrics and answers agree with a transfer, and no test can tell it from a prompt that was computed again."""
_ENOUGH = 2
"""Equal tokens that are no coincidence, where the two truths differ later than the first token."""


@dataclass(frozen=True)
class Swap:
    """One swap: what A alone and B alone give, and what came out."""

    length: int
    """Prompt length in tokens, of A and of B."""
    truth_a: tuple[int, ...]
    """Tokens that follow prompt A without any transfer: at least the producer's own first token."""
    truth_b: tuple[int, ...]
    output: tuple[int, ...]
    """Tokens that the consumer gave for B with A's KV."""


@dataclass(frozen=True)
class Judgement:
    """A verdict with its reason."""

    verdict: Verdict
    reason: str


def leading_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two outputs share from the start."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def tells_apart(truth_a: Sequence[int], truth_b: Sequence[int]) -> bool:
    """Say whether two prompts are any use for a swap: their continuations must differ."""
    return bool(truth_a) and bool(truth_b) and tuple(truth_a[:1]) != tuple(truth_b[:1])


def judge_swap(swap: Swap) -> Judgement:
    """Judge one swap by its first tokens: rounding may turn a later one, never all from the first on."""
    if not tells_apart(swap.truth_a, swap.truth_b):
        return Judgement("inconclusive", "both prompts go on with the same token")
    if not swap.output:
        return Judgement("error", "the consumer gave no token")
    a, b = leading_equal(swap.output, swap.truth_a), leading_equal(swap.output, swap.truth_b)
    if a:
        return Judgement(
            "used",
            f"the output follows the prompt whose KV was handed over ({a} of {min(len(swap.truth_a), len(swap.output))} tokens)",
        )
    if b:
        return Judgement(
            "ignored", "the KV was not used: the output follows the consumer's own prompt, which it computed again"
        )
    return Judgement("damaged", "the KV arrived damaged or was not loaded: the output follows neither prompt")


def judge_pair(swaps: Sequence[Swap], external_tokens: float | None) -> Judgement:
    """Judge a pair of engines by all its swaps: the worst counts; `inconclusive` ones count only if there is no other.

    `external_tokens`: what the consumer's metrics say came from a peer; None if they don't say. They prove nothing when they say yes,
    but 0 together with `ignored` means that nothing moved at all.
    """
    judged = [judge_swap(swap) for swap in swaps]
    clear = [one for one in judged if one.verdict != "inconclusive"]
    if not clear:
        return judged[0] if judged else Judgement("error", "no swap was made")
    order: tuple[Verdict, ...] = ("error", "damaged", "ignored", "used")
    worst = min(clear, key=lambda one: order.index(one.verdict))
    if worst.verdict == "ignored" and external_tokens == 0:
        return Judgement("not moved", "no KV moved: 0 tokens came from a peer, the consumer computed the prompt itself")
    if worst.verdict == "used":
        return Judgement(
            "used", f"the output follows the prompt whose KV was handed over in {len(clear)} of {len(clear)} swaps"
        )
    bad = sum(one.verdict == worst.verdict for one in clear)
    return Judgement(worst.verdict, f"{worst.reason} ({bad} of {len(clear)} swaps)")


def judge_unnamed(truth: Sequence[int], output: Sequence[int], external_tokens: float | None) -> Judgement:
    """Judge one prompt of a connector that finds KV by the prompt itself, which rules a swap out."""
    if not output:
        return Judgement("error", "the consumer gave no token")
    if not leading_equal(output, truth):
        return Judgement("damaged", "the answer differs from a plain run's from the first token on")
    if external_tokens == 0:
        return Judgement("not moved", "no KV moved: 0 tokens came from a peer, the consumer computed the prompt itself")
    claimed = "" if external_tokens is None else f"metrics claim {int(external_tokens)} tokens and "
    return Judgement(
        "unproven", f"{claimed}the answer is right; a connector that finds KV by the prompt cannot be swap-tested"
    )


def covering_pairs(producers: Sequence[str], consumers: Sequence[str]) -> list[tuple[str, str]]:
    """Return a smallest set of pairs in which every producer and every consumer takes part.

    2P3D -> (p0, d0), (p1, d1), (p0, d2).
    """
    count = max(len(producers), len(consumers)) if producers and consumers else 0
    return [(producers[index % len(producers)], consumers[index % len(consumers)]) for index in range(count)]
