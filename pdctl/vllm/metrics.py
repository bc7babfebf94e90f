"""Prometheus text as numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Metrics:
    """One scrape: (name, labels) -> value."""

    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum over all samples of `name` that carry these labels; None if there is none.

        `name` may leave out the `_total` that counters get on export.
        """
        names = {name, f"{name}_total"}
        wanted = set(labels.items())
        values = [value for (other, own), value in self.samples.items() if other in names and wanted <= set(own)]
        return sum(values) if values else None


def parse_metrics(text: str) -> Metrics:
    """Read Prometheus text; lines that are none are left out."""
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip()) if line and not line.startswith("#") else None
        if match:
            try:
                samples[match[1], tuple(sorted(_LABEL.findall(match[2] or "")))] = float(match[3])
            except ValueError:
                continue
    return Metrics(samples)


def growth(before: Metrics, after: Metrics, name: str, **labels: str) -> float | None:
    """Return how much a counter grew between two scrapes; None if the later one does not have it."""
    end = after.total(name, **labels)
    return None if end is None else end - (before.total(name, **labels) or 0.0)
