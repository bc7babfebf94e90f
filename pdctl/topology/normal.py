"""The forms that people write, brought into the one that is validated."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pdctl.topology.fields import is_section
from pdctl.topology.schema import MOST_REPLICAS
from pdctl.topology.source import below

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdctl.topology.source import Path
    from pdctl.topology.written import Written

    Report = Callable[[Path, str, str], None]

_LAYOUT = re.compile(r"([0-9]{1,9})P([0-9]{1,9})D")
_ROLES = (("prefill", "P"), ("decode", "D"))


def normalise(
    data: dict[str, Any], default_name: str, settings: Sequence[Path], written: Written, report: Report
) -> dict[str, Any]:
    """Drop empty sections, fill in the name, give the connector its long form and fold the layout into the roles.

    `settings`: the paths of `--set` in their order; between a layout and a count that disagree the later one wins.
    """
    result: dict[str, Any] = _without_empty(data, ())
    if result.get("name") is None:
        result["name"] = default_name
    if isinstance(result.get("connector"), str):
        result["connector"] = {"name": result["connector"]}
    inside = result["connector"].get("connectors") if isinstance(result.get("connector"), dict) else None
    if isinstance(inside, list):
        result["connector"] = {
            **result["connector"],
            "connectors": [{"name": one} if isinstance(one, str) else one for one in inside],
        }
    _fold_layout(result, settings, written, report)
    return result


def _without_empty(value: Any, path: Path) -> Any:
    """Leave out sections that hold nothing, such as `engine:` with all its lines commented out."""
    if isinstance(value, list):
        return [_without_empty(one, (*path, index)) for index, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    return {
        key: _without_empty(one, (*path, key))
        for key, one in value.items()
        if one is not None or not is_section((*path, key))
    }


def _fold_layout(data: dict[str, Any], settings: Sequence[Path], written: Written, report: Report) -> None:
    layout = data.get("layout")
    if not isinstance(layout, str):
        return
    match = _LAYOUT.fullmatch(layout)
    if match is None:
        report(("layout",), f"{written.show(('layout',), layout)} is no layout", _layout_fix(layout))
        return
    counts = [int(count) for count in match.groups()]
    if max(counts) > MOST_REPLICAS:
        report(
            ("layout",), f"{written.show(('layout',))} has too many replicas", f"use {MOST_REPLICAS} or less of each"
        )
        return
    for at, ((role, letter), count) in enumerate(zip(_ROLES, counts, strict=True)):
        section = data.get(role, {})
        if not isinstance(section, dict):
            continue
        given = section.get("replicas")
        if given is None or _rank((role, "replicas"), settings) < _rank(("layout",), settings):
            data[role] = {**section, "replicas": count}
        elif isinstance(given, int) and _rank((role, "replicas"), settings) > _rank(("layout",), settings):
            counts[at] = given
        elif isinstance(given, int) and 0 <= given != count:
            at_layout = written.show(("layout",))
            what = f"{written.show((role, 'replicas'), given)} does not agree with layout {at_layout} (its {letter})"
            report((role, "replicas"), what, "remove one of the two, or make them agree")
    data["layout"] = f"{counts[0]}P{counts[1]}D"


def _rank(path: Path, settings: Sequence[Path]) -> int:
    """Return which setting, counted from 1, gave a path its value last; 0: the file did."""
    return max((number for number, one in enumerate(settings, 1) if below(path, one)), default=0)


def _layout_fix(layout: str) -> str:
    plain = re.sub(r"\s+", "", layout).upper()
    if _LAYOUT.fullmatch(plain):
        return f"write `{plain}`"
    swapped = re.fullmatch(r"([0-9]{1,9})D[-_:,+/]?([0-9]{1,9})P", plain)
    if swapped:
        return f"write `{swapped[2]}P{swapped[1]}D`"
    apart = re.fullmatch(r"([0-9]{1,9})P(?:[-_:,+/]|AND)*([0-9]{1,9})D", plain)
    if apart:
        return f"write `{apart[1]}P{apart[2]}D`"
    return "write it as 1P1D: a number of prefill replicas, P, a number of decode replicas, D"
