"""Prometheus metrics, by hand: a client library costs more than the requests."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
LEASE_S = 480.0
"""Longest that a producer holds blocks that nobody fetches (Nixl: 480 s up to vLLM 0.20.2, 30 s from 0.22.1)."""


class Counter:
    """A count for each combination of label values."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name = f"pdctl_proxy_{name}"
        self._text = text
        self._labels = labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *values: str, by: float = 1.0) -> None:
        self._values[values] = self._values.get(values, 0.0) + by

    def total(self) -> float:
        """Return the sum over all labels."""
        return sum(self._values.values())

    def render(self) -> str:
        lines = [f"# HELP {self.name} {self._text}", f"# TYPE {self.name} counter"]
        for values, count in sorted(self._values.items()):
            lines.append(f"{self.name}{_labels(self._labels, values)} {count:g}")
        return "\n".join(lines)


class Histogram:
    """Durations of one stage, in seconds."""

    def __init__(self, name: str, text: str) -> None:
        self.name = f"pdctl_proxy_{name}_seconds"
        self._text = text
        self._counts = [0] * (len(_BUCKETS_S) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self._sum += seconds

    def render(self) -> str:
        lines = [f"# HELP {self.name} {self._text}", f"# TYPE {self.name} histogram"]
        running = 0
        for limit, count in zip((*(f"{edge:g}" for edge in _BUCKETS_S), "+Inf"), self._counts, strict=True):
            running += count
            lines.append(f'{self.name}_bucket{{le="{limit}"}} {running}')
        lines += [f"{self.name}_sum {self._sum:.6f}", f"{self.name}_count {running}"]
        return "\n".join(lines)


class Metrics:
    """Everything the proxy counts."""

    def __init__(self) -> None:
        self.requests = Counter("requests_total", "Requests answered.", "route", "status")
        self.retries = Counter("retries_total", "Legs sent again to another instance.", "role")
        self.handovers = Counter("handovers_total", "Prefill answers with a usable hand-over.")
        self.handovers_failed = Counter("handovers_failed_total", "Prefill answers without a usable hand-over.")
        self.abandoned = Counter(
            "handovers_abandoned_total", "Hand-overs whose client left before decode was asked; see ..._abandoned_held."
        )
        self.drains = Counter("drains_total", "Decode legs sent for clients that had left, so that pushed KV is freed.")
        self.fallbacks = Counter("fallbacks_total", "Requests that a consumer served without a producer.", "reason")
        self.disconnects = Counter("client_disconnects_total", "Clients that left before their answer ended.", "phase")
        self.leg_failures = Counter("leg_failures_total", "Legs that an engine did not answer.", "role", "reason")
        self.registrations = Counter("registrations_total", "Registration messages.", "result")
        self.prefill = Histogram("prefill", "From sending the prefill leg to its whole answer.")
        self.first_byte = Histogram("decode_first_byte", "From sending the decode leg to its answer's first byte.")
        self.duration = Histogram("request_duration", "From the request's last byte to the answer's last byte.")
        self.in_flight = 0
        self._held: deque[float] = deque()

    def abandon(self, now: float) -> None:
        """Note a hand-over that nobody fetches."""
        self.abandoned.add()
        self._held.append(now + LEASE_S)

    def render(self, now: float, gauges: list[tuple[str, str, str, float]]) -> str:
        """Return the text format. `gauges`: name, help, labels, value; one name's rows stand together."""
        while self._held and self._held[0] <= now:
            self._held.popleft()
        parts = [value.render() for value in vars(self).values() if isinstance(value, Counter | Histogram)]
        rows = [
            ("in_flight", "Requests in work.", "", float(self.in_flight)),
            (
                "handovers_abandoned_held",
                "Abandoned hand-overs whose blocks a producer may still hold: for at most 480 s.",
                "",
                float(len(self._held)),
            ),
            *gauges,
        ]
        seen = ""
        for name, text, labels, value in rows:
            full = f"pdctl_proxy_{name}"
            if full != seen:
                parts.append(f"# HELP {full} {text}\n# TYPE {full} gauge")
                seen = full
            parts.append(f"{full}{labels} {value:g}")
        return "\n".join(parts) + "\n"


def label(text: str) -> str:
    """Return a label's value, escaped."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{label(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"
