"""Free engine arguments against the release: what pdctl sets itself, what it does not know, wrong values, roles that disagree."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pdctl.vllm.argument_types import misfit
from pdctl.vllm.flags import normal_flag, owned_by
from pdctl.vllm.releases import release, spans

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.errors import Problem
    from pdctl.plan.shapes import RoleShape
    from pdctl.plan.versions import EngineVersion
    from pdctl.topology.source import Path, SourceMap
    from pdctl.vllm.releases import Flag

_SAME_ON_BOTH = {
    "dtype": "KV is copied byte for byte",
    "kv-cache-dtype": "KV is copied byte for byte",
    "attention-backend": "the layout of a KV block is the backend's",
}
"""Flag -> why prefill and decode must agree on it, for every connector (Nixl: in its hash, 0.33.0, v1/nixl/metadata.py:186)."""


@dataclass
class Checked:
    """What was found."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def check_arguments(
    sections: Mapping[str, Mapping[str, Any]],
    roles: Sequence[RoleShape],
    version: EngineVersion,
    source: SourceMap,
    *,
    simulated: bool,
    disaggregated: bool,
) -> Checked:
    """Check the args by the key that holds them, such as `engine` or `decode`.

    What the release does not know is a problem only where the release is known for sure: with an assumed one, or one newer than the
    facts, it is a warning.
    """
    found = Checked()
    facts = release(version.version)
    for section, args in sections.items():
        first: dict[str, str] = {}
        for written, value in args.items():
            path = (section, "args", written)
            problem = _own_problem(written, first, path, source)
            if problem is not None:
                found.problems.append(problem)
                continue
            if simulated and normal_flag(written).startswith("sim-"):
                continue
            wrong = _unknown(written, facts.flags, version) or _wrong_value(written, value, facts.flags)
            if wrong is not None and version.certain:
                found.problems.append(source.problem(path, *wrong))
            elif wrong is not None:
                found.warnings.append(f"{section}.args.{written}: {wrong[0]}; {wrong[1]}")
    if disaggregated:
        found.problems += _disagreements(roles, source)
    return found


def _own_problem(written: str, first: dict[str, str], path: Path, source: SourceMap) -> Problem | None:
    """Return a problem with an argument that pdctl owns, that hides its value in the key, or that is written twice."""
    flag = normal_flag(written)
    base = flag.removeprefix("no-")
    instead = owned_by(written) or (owned_by(base) if base != flag else None)
    key, equals, value = written.partition("=")
    before = first.get(base)
    first.setdefault(base, written)
    if instead:
        return source.problem(path, f"pdctl sets `--{written.lstrip('-')}` itself", f"remove it; {instead}")
    if equals:
        what = "the value stands in the key, where it would be lost"
        return source.problem(path, what, f"write `{key.lstrip('-')}: {value}`")
    if before is not None:
        return source.problem(path, f"`{written}` and `{before}` are the same flag", "keep one of them")
    return None


def _unknown(written: str, flags: Mapping[str, Flag], version: EngineVersion) -> tuple[str, str] | None:
    """Say that this release has no such flag, with the nearest one, or with the releases that have it."""
    name = normal_flag(written)
    if _flag(name, flags) is not None or name.partition(".")[0] in ("O", *(f"O{level}" for level in range(4))):
        return None
    what = f"vLLM {version.text} has no `--{name}`"
    there = spans("flags", name.partition(".")[0])
    if there:
        return what, f"vLLM {' and '.join(map(str, there))} has it"
    near = difflib.get_close_matches(name, flags, n=1, cutoff=0.7)
    return what, f"did you mean `{near[0]}`?" if near else "remove it"


def _flag(name: str, flags: Mapping[str, Flag]) -> Flag | None:
    base = name.partition(".")[0]
    if base in flags:
        return flags[base]
    positive = flags.get(base.removeprefix("no-"))
    return positive if positive is not None and positive.kind == "bool" else None


def _wrong_value(written: str, value: Any, flags: Mapping[str, Flag]) -> tuple[str, str] | None:
    name = normal_flag(written)
    flag = _flag(name, flags)
    if flag is None or "." in name:
        return None  # a field of a config class: vLLM's own words are the check
    if name not in flags:  # no-X: alone, or not at all
        return None if value is True else (f"`{name}` takes no value", f"write `{flag.name}: false`")
    if flag.kind == "switch" and value is False:
        return f"`{name}` has no `--no-{name}`", "remove it: false is what it is without"
    return misfit(flag, value)


def _disagreements(roles: Sequence[RoleShape], source: SourceMap) -> list[Problem]:
    """Return a problem for each flag on which prefill and decode must agree and do not."""
    by_role = {role.role: role for role in roles}
    producer, consumer = by_role.get("producer"), by_role.get("consumer")
    if producer is None or consumer is None:
        return []
    problems = []
    for flag, why in _SAME_ON_BOTH.items():
        p, d = producer.args.get(flag), consumer.args.get(flag)
        if p != d:
            p_said, d_said = ("vLLM's default" if value is None else str(value) for value in (p, d))
            path = source.written(("decode", "args", flag), ("prefill", "args", flag))
            what = f"prefill has `{flag}` {p_said}, decode {d_said}: they must agree, {why}"
            problems.append(source.problem(path, what, f"set it once under engine.args: {{{flag}: ...}}"))
    return problems
