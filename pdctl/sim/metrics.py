"""vLLM's metrics, those that pdctl and people's dashboards read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


@dataclass
class Histogram:
    """Observations in buckets."""

    count: int = 0
    total: float = 0.0
    buckets: Counter[float] = field(default_factory=Counter)

    def observe(self, value: float) -> None:
        self.count += 1
        self.total += value
        for bound in _BUCKETS_S:
            if value <= bound:
                self.buckets[bound] += 1


@dataclass
class Metrics:
    """Counters, gauges and histograms of one engine."""

    model: str
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    counters: dict[tuple[str, str], float] = field(default_factory=dict)
    """By (name, further labels as text)."""
    histograms: dict[str, Histogram] = field(default_factory=dict)

    def count(self, name: str, value: float = 1, labels: str = "") -> None:
        self.counters[name, labels] = self.counters.get((name, labels), 0.0) + value

    def observe(self, name: str, value: float) -> None:
        self.histograms.setdefault(name, Histogram()).observe(value)

    def text(self) -> str:
        """Return the Prometheus text."""
        name = self.model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        base = f'engine="0",model_name="{name}"'
        gauges = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": self.kv_usage,
        }
        lines = []
        for name, value in gauges.items():
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{base}}} {float(value)}"]
        for name in sorted({name for name, _ in self.counters}):
            lines.append(f"# TYPE vllm:{name}_total counter")
            lines += [
                f"vllm:{name}_total{{{base}{',' if labels else ''}{labels}}} {float(value)}"
                for (other, labels), value in sorted(self.counters.items())
                if other == name
            ]
        for name, histogram in self.histograms.items():
            lines.append(f"# TYPE vllm:{name} histogram")
            lines += [
                f'vllm:{name}_bucket{{{base},le="{bound}"}} {float(histogram.buckets[bound])}' for bound in _BUCKETS_S
            ]
            lines += [
                f'vllm:{name}_bucket{{{base},le="+Inf"}} {float(histogram.count)}',
                f"vllm:{name}_count{{{base}}} {float(histogram.count)}",
                f"vllm:{name}_sum{{{base}}} {histogram.total}",
            ]
        return "\n".join(lines) + "\n"
