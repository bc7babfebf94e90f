"""Find in an engine's log why it died: the cause, not the wrapper that is printed last. What lines mean: signatures.py.

The earliest line that a `cause` row knows wins; without one the earliest exception that is no wrapper; without that a `weak` row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pdctl.vllm.signatures import SIGNATURES, Signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class RootCause:
    """Why an engine died."""

    cause: str
    """One sentence without a full stop."""
    fix: str
    """What to do; empty where that is not known."""
    evidence: tuple[str, ...]
    """The decisive lines, oldest first."""
    name: str = ""
    """The row of signatures.py; empty for an exception that no row knows."""

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "cause": self.cause, "fix": self.fix, "lines": list(self.evidence)}


@dataclass(frozen=True)
class Symptom:
    """Something that an engine lives on with."""

    cause: str
    fix: str
    name: str
    count: int
    """Lines that say so."""
    line: str
    """The first of them."""

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "cause": self.cause, "fix": self.fix, "count": self.count, "lines": [self.line]}


_CAUSES = tuple(row for row in SIGNATURES if row.weight == "cause")
_WEAK = tuple(row for row in SIGNATURES if row.weight == "weak")
_HARM = tuple(row for row in SIGNATURES if row.weight == "harm")
HARM = "|".join(f"(?:{row.pattern.pattern})" for row in _HARM)
"""A regular expression that matches every line that `find_symptoms` counts."""
_WRAPPERS = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|WorkerProc failed to start|WorkerProc initialization failed"
    r"|EngineCore encountered (?:a fatal error|an issue)|Frontend process failed|shutting down executor|EngineDeadError"
    r"|See root cause above|leaked (?:semaphore|shared_memory)"
)
_EXCEPTION = re.compile(r"(?:^|\s)((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure))(?:: (.*))?$")
_TRACEBACK = "Traceback (most recent call last):"
_PREFIX = re.compile(
    r"^(?:\([\w ]+(?: pid=\d+)?\) ?)*(?:(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\] )?)?"
)
_CONTEXT = 6
_HARMLESS = re.compile(r"(?:INFO|WARNING|DEBUG) \d\d-\d\d \d\d:")
"""Lines about something that was dealt with: a start warns about a dozen things that it can do without."""
_USAGE = re.compile(r": error: ")


def find_root_cause(lines: Sequence[str]) -> RootCause | None:
    """Return why the engine that wrote these lines died; None if nothing in them says it."""
    texts = [_PREFIX.sub("", line.rstrip()) for line in lines]
    return _by_row(_CAUSES, lines, texts) or _first_exception(lines, texts) or _by_row(_WEAK, lines, texts)


def find_symptoms(lines: Iterable[str]) -> list[Symptom]:
    """Return what an engine that wrote these lines lived on with, in the order in which it came up."""
    found: dict[str, Symptom] = {}
    for line in lines:
        text = _PREFIX.sub("", line.rstrip())
        for row in _HARM:
            match = row.pattern.search(text)
            if match:
                before = found.get(row.name)
                count = before.count + 1 if before else 1
                first = before or Symptom(_expand(row.cause, match), row.fix, row.name, 1, line.rstrip())
                found[row.name] = Symptom(first.cause, first.fix, first.name, count, first.line)
                break
    return list(found.values())


def _by_row(rows: Sequence[Signature], lines: Sequence[str], texts: Sequence[str]) -> RootCause | None:
    """Return what the earliest line says that one of the rows matches."""
    for index, text in enumerate(texts):
        if _HARMLESS.search(lines[index]) or (_WRAPPERS.search(text) and "died unexpectedly" not in text):
            continue
        for row in rows:
            match = row.pattern.search(text)
            if match:
                cause = _with_fields(_expand(row.cause, match), texts, index)
                return RootCause(cause, row.fix, _around(lines, texts, index), row.name)
    return None


def _with_fields(cause: str, texts: Sequence[str], index: int) -> str:
    """Add the fields that a pydantic error lists in the lines after it."""
    if "validation error" not in texts[index] or "argument" not in texts[index]:
        return cause
    fields = [text for text in texts[index + 1 : index + 20] if re.fullmatch(r"[a-z_][\w.]*", text)]
    return f"{cause}: {', '.join(fields)}" if fields else cause


def _expand(cause: str, match: re.Match[str]) -> str:
    text = re.sub(r"\\(\d)", lambda group: (match[int(group[1])] or "").strip(), cause)
    return re.sub(r"  +", " ", text).rstrip(" :.")


def _around(lines: Sequence[str], texts: Sequence[str], index: int) -> tuple[str, ...]:
    """Return the line, the last frames of its traceback, and what a pydantic error says under it."""
    start = index
    if any(_TRACEBACK in text for text in texts[:index]) and not _USAGE.search(texts[index]):
        while start > 0 and index - start < _CONTEXT and texts[start - 1].startswith("  "):
            start -= 1
    end = index + 1
    last = min(len(lines), index + 4) if "validation error" in texts[index] else end
    while end < last and texts[end].strip() and not _WRAPPERS.search(texts[end]):
        end += 1
    return tuple(lines[start:end])


def _first_exception(lines: Sequence[str], texts: Sequence[str]) -> RootCause | None:
    """Return the earliest exception that is neither a wrapper nor something that an engine survives, with the last frames of its traceback."""
    inside = False
    for index, text in enumerate(texts):
        if _TRACEBACK in text:
            inside = True
            continue
        match = _EXCEPTION.search(text) if inside and not text.startswith("  ") else None
        if match and not _WRAPPERS.search(text) and not any(row.pattern.search(text) for row in _HARM):
            what = f"{match[1].rsplit('.', 1)[-1]}: {match[2]}" if match[2] else match[1]
            return RootCause(what.rstrip(". "), "", _around(lines, texts, index))
        if match:
            inside = False
    return None
