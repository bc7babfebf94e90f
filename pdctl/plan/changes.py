"""What has to be done to get from what runs to what is planned. Pure: the executor only walks the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pdctl.plan.secrets import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pdctl.plan.model import InstancePlan, Plan

Action = Literal["start", "restart", "stop", "keep"]
_SIGNS = {"start": "+", "restart": "~", "stop": "-", "keep": " "}


@dataclass(frozen=True)
class Running:
    """What was observed of one instance."""

    state: str
    host: str
    hash: str


@dataclass(frozen=True)
class Change:
    """One instance's way from observed to planned, with its cause."""

    instance: str
    action: Action
    cause: str
    host: str

    def __str__(self) -> str:
        return f"{_SIGNS[self.action]} {self.instance}: {self.cause}"


def plan_changes(
    plan: Plan, hashes: Mapping[str, str], running: Mapping[str, Running], before: Plan | None
) -> tuple[Change, ...]:
    """Compare planned instances (`hashes`: their spec hashes) with what was observed.

    `before` is the plan that the running instances were started from; it only serves to name what changed.
    """
    changes = [
        _change(instance, hashes[instance.name], running.get(instance.name), before) for instance in plan.instances
    ]
    planned = {instance.name for instance in plan.instances}
    changes += [
        Change(name, "stop", "no longer in the topology", seen.host)
        for name, seen in running.items()
        if name not in planned and seen.state not in ("stopped", "failed")
    ]
    return tuple(changes)


def _change(instance: InstancePlan, digest: str, seen: Running | None, before: Plan | None) -> Change:
    if seen is None or seen.state in ("stopped", "pending"):
        return Change(instance.name, "start", "not running", instance.host)
    if seen.state == "failed":
        return Change(instance.name, "start", "failed before", instance.host)
    if seen.host != instance.host:
        return Change(instance.name, "restart", f"host {seen.host} -> {instance.host}", instance.host)
    if seen.hash != digest:
        return Change(instance.name, "restart", _difference(instance, before), instance.host)
    return Change(instance.name, "keep", f"{seen.state} as planned", instance.host)


def _difference(instance: InstancePlan, before: Plan | None) -> str:
    old = next((one for one in before.instances if one.name == instance.name), None) if before else None
    if old is None:
        return "its specification changed"
    parts = [
        *_changed_values("args", _flags(old.argv), _flags(instance.argv)),
        *_changed_values("env", old.env, instance.env),
        *_changed_values("", {"gpus": ",".join(old.gpus)}, {"gpus": ",".join(instance.gpus)}),
    ]
    return ", ".join(parts) if parts else "its health, restart or log settings changed"


def _changed_values(prefix: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    dot = f"{prefix}." if prefix else ""
    return [
        f"{dot}{key} changed"
        if is_secret(key)
        else f"{dot}{key} {old.get(key, '(unset)')} -> {new.get(key, '(unset)')}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def _flags(argv: Sequence[str]) -> dict[str, str]:
    """Read `--flag value ...` pairs back from an argv; a bare flag has the value `true`, the command is `command`."""
    flags: dict[str, list[str]] = {"command": []}
    name = "command"
    for word in argv:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            flags.setdefault(name, [])
            if value:
                flags[name].append(value)
        else:
            flags[name].append(word)
    return {name: " ".join(values) or "true" for name, values in flags.items()}
