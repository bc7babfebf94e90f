"""The result of a verification."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdctl.verify.judge import Verdict

_KV_NOT_MOVED = 5
FINE = ("used", "unproven")


@dataclass(frozen=True)
class PairReport:
    """One producer and one consumer."""

    producer: str
    consumer: str
    verdict: Verdict
    reason: str
    tokens: int | None = None
    """Prompt tokens that came from the peer, by the consumer's metrics."""
    expected: int = 0
    """Prompt tokens that were asked for."""
    bytes: float | None = None
    """Moved, where the connector counts them (Nixl)."""
    seconds: float | None = None
    gb_per_s: float | None = None
    failures: float | None = None
    """Failed transfers by the consumer's metrics."""
    first_contact: str = ""
    """What went wrong when the two first met, if trying again made it good."""


@dataclass(frozen=True)
class Equality:
    """The same prompts through the proxy and plainly."""

    prompts: int
    equal: int
    """Prompts whose outputs agree in all tokens."""
    first_wrong: int
    """Prompts whose outputs differ from the first token on."""
    against: str
    """Where the plain run was made."""

    @property
    def text(self) -> str:
        return f"{self.equal} of {self.prompts} outputs through the proxy equal those of {self.against}"


@dataclass(frozen=True)
class VerifyReport:
    """Everything `verify` found out."""

    pairs: tuple[PairReport, ...]
    equality: Equality | None
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    unverified: str = ""
    """Why nothing could be probed; empty if it was."""

    @property
    def ok(self) -> bool:
        """Whether every pair used the KV and the proxy's answers agree with plain ones."""
        return all(pair.verdict in FINE for pair in self.pairs) and not self.proxy_wrong

    @property
    def proxy_wrong(self) -> bool:
        """Whether most answers through the proxy differ from plain ones from the first token on: no rounding does that."""
        return self.equality is not None and self.equality.first_wrong * 2 > self.equality.prompts

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else _KV_NOT_MOVED

    @property
    def headline(self) -> str:
        """One line for people."""
        if self.unverified:
            return f"KV not verified: {self.unverified}"
        if not self.pairs:
            return "nothing to verify: no prefill and decode"
        bad = [pair for pair in self.pairs if pair.verdict not in FINE]
        if bad:
            first = bad[0]
            more = f" (and {len(bad) - 1} more pairs)" if len(bad) > 1 else ""
            return f"KV NOT verified: {first.producer} -> {first.consumer}: {first.reason}{more}"
        if self.proxy_wrong and self.equality is not None:
            return f"KV NOT verified: only {self.equality.text}"
        tokens = [pair.tokens for pair in self.pairs if pair.tokens is not None]
        expected = sum(pair.expected for pair in self.pairs if pair.tokens is not None)
        moved = (
            f"{sum(tokens)}/{expected} tokens"
            if tokens
            else f"{len(self.pairs)} pair{'s' if len(self.pairs) > 1 else ''}"
        )
        speeds = [pair.gb_per_s for pair in self.pairs if pair.gb_per_s is not None]
        speed = f", {min(speeds):.2g} GB/s" if speeds else ""
        if any(pair.verdict == "unproven" for pair in self.pairs):
            return f"KV moved by the metrics, answers right, not provable by a swap ({moved}{speed})"
        return f"KV verified ({moved}{speed})"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        equality = None if self.equality is None else {**asdict(self.equality), "text": self.equality.text}
        return {
            "schema": 1, "ok": self.ok, "exit_code": self.exit_code, "pairs": [asdict(pair) for pair in self.pairs], "equality": equality,
            "warnings": list(self.warnings), "seconds": round(self.seconds, 3), "unverified": self.unverified or None,
        }  # fmt: skip
