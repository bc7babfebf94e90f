"""Facts of many releases as spans: an entry stands once for the releases that agree on it, so a new release is a small diff.

File: {"schema": 1, "releases": [...], TABLE: {name: [{"from": R, "to": R or null, ...attributes}, ...]}}; `to` null: the newest
release still has it so.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Release = dict[str, dict[str, dict[str, Any]]]
"""table -> name -> attributes, of one release."""
SCHEMA = 1


def version_key(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def to_spans(facts: Mapping[str, Release]) -> dict[str, Any]:
    """Return the file's content for release -> facts."""
    order = sorted(facts, key=version_key)
    tables = sorted({table for release in facts.values() for table in release})
    content: dict[str, Any] = {"schema": SCHEMA, "releases": order}
    for table in tables:
        names = sorted({name for release in order for name in facts[release].get(table, {})})
        content[table] = {
            name: _spans(order, [facts[release].get(table, {}).get(name) for release in order]) for name in names
        }
    return content


def _spans(order: list[str], values: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    last: dict[str, Any] | None = None
    for release, value in zip(order, values, strict=True):
        if value is not None and value == last:
            spans[-1]["to"] = release
        elif value is not None:
            spans.append({"from": release, "to": release, **value})
        last = value
    if last is not None:
        spans[-1]["to"] = None
    return spans


def from_spans(content: Mapping[str, Any]) -> dict[str, Release]:
    """Return release -> facts again."""
    order: list[str] = content["releases"]
    facts: dict[str, Release] = {release: {} for release in order}
    for table, names in content.items():
        if not isinstance(names, dict):
            continue
        for name, spans in names.items():
            for span in spans:
                first = order.index(span["from"])
                last = len(order) - 1 if span["to"] is None else order.index(span["to"])
                value = {key: one for key, one in span.items() if key not in ("from", "to")}
                for release in order[first : last + 1]:
                    facts[release].setdefault(table, {})[name] = value
    return facts


def dump(content: Mapping[str, Any]) -> str:
    """Return JSON with one line an entry."""
    lines = ["{"]
    for table, names in content.items():
        if isinstance(names, dict):
            lines.append(f' "{table}": {{')
            lines += [f'  "{name}": {json.dumps(spans, separators=(",", ":"))},' for name, spans in names.items()]
            lines[-1] = lines[-1].rstrip(",")
            lines.append(" },")
        else:
            lines.append(f' "{table}": {json.dumps(names)},')
    lines[-1] = lines[-1].rstrip(",")
    return "\n".join([*lines, "}", ""])
