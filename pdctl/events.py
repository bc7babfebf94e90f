"""What happened, as values: effects emit them, renderers show them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Event:
    """One thing that happened to an instance or to the cluster."""

    kind: str
    """`start`, `phase`, `ready`, `exit`, `failed`, `stopped`, `verify`, `step`, ..."""
    subject: str
    """Instance name, or the cluster's name."""
    text: str
    """For people, without a full stop."""
    data: dict[str, Any] = field(default_factory=dict)


class Sink(Protocol):
    """Takes events: a live display, plain lines, JSON."""

    def emit(self, event: Event) -> None: ...
