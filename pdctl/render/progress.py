"""Progress of a launch on stderr: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, TYPE_CHECKING, Any, Protocol

from pdctl.events import Event, Sink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdctl.plan.model import Plan

_FRAMES_PER_S = 8


class Progress(Sink, Protocol):
    """A sink that can be put aside while a question is asked."""

    def paused(self) -> AbstractContextManager[None]: ...


class PlainProgress:
    """One line for each thing that happened."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._last: dict[str, str] = {}

    def emit(self, event: Event) -> None:
        text = _without_numbers(event.text)
        if self._last.get(event.subject) == text:  # a percentage that moves is one line, not a hundred
            return
        self._last[event.subject] = text
        self._stream.write(f"{time.monotonic() - self._began:7.1f}s  {event.subject}  {event.text}\n")
        self._stream.flush()

    def paused(self) -> AbstractContextManager[None]:
        return nullcontext()


class LiveProgress:
    """A table of instances that moves."""

    def __init__(self, plan: Plan, stream: IO[str]) -> None:
        from rich.live import Live

        from pdctl.render.console import console

        self._began = time.monotonic()
        self._rows: dict[str, tuple[str, str, float | None]] = {
            one.name: ("pending", "", None) for one in plan.instances
        }
        self._note = ""
        self._live = Live(
            console=console(stream), get_renderable=self._table, refresh_per_second=_FRAMES_PER_S, transient=True
        )

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def emit(self, event: Event) -> None:
        if event.subject not in self._rows:
            self._note = event.text
            return
        state = str(event.data.get("state") or ("starting" if event.kind == "start" else event.kind))
        took = time.monotonic() - self._began if event.kind in ("ready", "failed") else None
        self._rows[event.subject] = (state, event.text if event.text != state else "", took)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    def _table(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        from pdctl.render.console import STATE_STYLES, plain_table

        elapsed = time.monotonic() - self._began
        table = plain_table("NAME", "STATE", "", "TIME")
        for name, (state, phase, took) in self._rows.items():
            shown = f"{took if took is not None else elapsed:.1f}s" if state != "pending" else ""
            table.add_row(name, Text(state, STATE_STYLES.get(state, "")), phase, shown)
        return Group(table, Text(f"{self._note} ({elapsed:.1f}s)" if self._note else "", "dim"))


@contextmanager
def progress(plan: Plan, stream: IO[str]) -> Iterator[Progress]:
    """Yield the display that fits the stream."""
    if not stream.isatty():
        yield PlainProgress(stream)
        return
    live = LiveProgress(plan, stream)
    live.start()
    try:
        yield live
    finally:
        live.stop()


def _without_numbers(text: str) -> str:
    return "".join(character for character in text if not character.isdigit())
