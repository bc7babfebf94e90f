"""Ports that engines listen on, and where two of them want the same one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Claim:
    """`count` adjacent ports from `first` on one host."""

    owner: str
    host: str
    use: str
    """Such as `KV ports`."""
    first: int
    count: int
    setting: str
    """What moves it, such as `kv_port`."""

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def meets(self, other: Claim) -> bool:
        return self.host == other.host and self.first <= other.last and other.first <= self.last


def port_number(value: Any) -> int | None:
    """Return a port that may be written as text, as vLLM takes it; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def clashes(claims: Sequence[Claim]) -> list[tuple[str, str, str]]:
    """Return (owner to move, what, fix) for each two claims that meet; [21000, 21001] and [21001, 21002] meet at 21001."""
    found = []
    for one, other in combinations(claims, 2):
        if one.meets(other):
            at = _span(max(one.first, other.first), min(one.last, other.last))
            what = f"{_named(one)} and {_named(other)} overlap at {at} on host {other.host}: {_effect(one, other)}"
            fix = f"set {other.setting} of {other.owner} to {_free(other, claims)}"
            found.append((other.owner, what, fix))
    return found


def _free(claim: Claim, claims: Sequence[Claim]) -> int:
    """Return the first port, above those it meets, from which a claim meets no other one."""
    others = [one for one in claims if one is not claim and one.host == claim.host]
    first = claim.first
    while True:
        moved = Claim(claim.owner, claim.host, claim.use, first, claim.count, claim.setting)
        in_the_way = [one for one in others if one.meets(moved)]
        if not in_the_way:
            return first
        first = max(one.last for one in in_the_way) + 1


def _effect(one: Claim, other: Claim) -> str:
    """vLLM 0.22.1: nixl/scheduler.py:271-305 waits for a thread that has died of it; p2p_nccl_engine.py:127 raises in a worker."""
    nixl = [claim.use == "side-channel ports" for claim in (one, other)]
    hangs = "hangs without a word" if all(nixl) else "fails or hangs" if any(nixl) else "fails"
    return f"the second to start {hangs}"


def _named(claim: Claim) -> str:
    return f"{claim.use} {_span(claim.first, claim.last)} of {claim.owner}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
