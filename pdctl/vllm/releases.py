"""What each vLLM release has, out of `releases.json`: connectors, KVTransferConfig fields, flags, variables, metrics.

The file is made from published wheels by tools/vllm_facts; nothing in it is typed by hand. Each entry there is a list of spans
{"from", "to", ...}; `to` null means that the newest release still has it so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pdctl.vllm.version import Version, format_version, parse_version

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Span:
    """Releases from `first` to `last` that have something; `last` None: the newest known one too."""

    first: Version
    last: Version | None

    def __str__(self) -> str:
        if self.last is None:
            return f"{format_version(self.first)} on"
        return (
            format_version(self.first)
            if self.first == self.last
            else f"{format_version(self.first)} to {format_version(self.last)}"
        )


@dataclass(frozen=True)
class Flag:
    """One flag of `vllm serve`."""

    name: str
    """Long, without dashes: `max-model-len`."""
    kind: str
    """int, float, str, size, auto-size, bool, switch, json, list-int, list-float, list-str, append, any: tools/vllm_facts/flags.py."""
    choices: tuple[Any, ...] | None
    default: Any
    """None where it is not a plain literal."""
    short: str | None


@dataclass(frozen=True)
class Connector:
    """What a release says of a connector that it registers."""

    name: str
    supports_hma: bool
    """Whether it works with the hybrid KV cache (sliding window, Mamba); MultiConnector depends on its children."""
    extra_keys: tuple[str, ...]
    """Keys of kv_connector_extra_config that its package reads; empty where none were found, which proves nothing."""


class Release:
    """One release's facts. Tables are resolved when they are first asked for."""

    def __init__(self, asked: Version) -> None:
        self.version = nearest_release(asked)
        self.is_newer_than_known = asked[:2] > newest_known()[:2]
        self.is_older_than_known = asked < known_releases()[0]

    @property
    def connectors(self) -> Mapping[str, Connector]:
        return {
            name: Connector(name, bool(fact["hma"]), tuple(fact["extra"]))
            for name, fact in self._table("connectors").items()
        }

    @property
    def kv_config_fields(self) -> Mapping[str, Mapping[str, Any]]:
        """Field of KVTransferConfig -> {type, default?}."""
        return self._table("kv_config")

    @property
    def refuses_unknown_fields(self) -> bool:
        return bool(self._table("general")["kv_config_forbids_unknown_fields"]["value"])

    @property
    def nixl_connector_version(self) -> int | None:
        found = self._table("general").get("nixl_connector_version")
        return int(found["value"]) if found else None

    @property
    def flags(self) -> Mapping[str, Flag]:
        return {
            name: Flag(
                name,
                fact["kind"],
                tuple(fact["choices"]) if "choices" in fact else None,
                fact.get("default"),
                fact.get("short"),
            )
            for name, fact in self._table("flags").items()
        }

    @property
    def environment(self) -> frozenset[str]:
        return frozenset(self._table("env"))

    @property
    def messages(self) -> frozenset[str]:
        """Names of the rows of signatures.py whose text this release's sources have."""
        return frozenset(self._table("messages"))

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset(self._table("metrics"))

    def _table(self, name: str) -> dict[str, dict[str, Any]]:
        return _table(name, self.version)


@lru_cache(maxsize=64)
def release(version: Version) -> Release:
    """Return the facts for a version: those of the nearest known release at or below it, else the oldest known one's."""
    return Release(version)


def nearest_release(version: Version) -> Version:
    """Return the newest known release that is not newer than `version`; the oldest known one for anything older."""
    known = known_releases()
    return max((one for one in known if one <= version), default=known[0])


@lru_cache(maxsize=1)
def known_releases() -> tuple[Version, ...]:
    """Return all releases in the file, oldest first."""
    return tuple(parse_version(text) for text in _content()["releases"])


def newest_known() -> Version:
    """Return the newest release in the file."""
    return known_releases()[-1]


@lru_cache(maxsize=1024)
def spans(table: str, name: str) -> tuple[Span, ...]:
    """Return the releases that have a name of a table (`connectors`, `flags`, ...); neighbours are one span. Empty: none has."""
    found: list[Span] = []
    known = known_releases()
    for one in _content()[table].get(name, ()):
        first, last = parse_version(one["from"]), None if one["to"] is None else parse_version(one["to"])
        before = found[-1] if found else None
        if before is not None and before.last is not None and known.index(before.last) + 1 == known.index(first):
            found[-1] = Span(before.first, last)
        else:
            found.append(Span(first, last))
    return tuple(found)


def names(table: str) -> tuple[str, ...]:
    """Return every name that any release has in a table."""
    return tuple(_content()[table])


@lru_cache(maxsize=1)
def short_flags() -> dict[str, str]:
    """Return short spelling -> long name over all releases, the newest meaning of each; `-O` is left out: it changed its meaning."""
    found = {}
    for name, entries in _content()["flags"].items():
        for one in entries:
            short = one.get("short")
            if short and short != "O" and (short not in found or one["to"] is None):
                found[short] = name
    return found


@lru_cache(maxsize=1)
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("pdctl.vllm").joinpath("releases.json").read_bytes())
    return content


@lru_cache(maxsize=256)
def _table(name: str, version: Version) -> dict[str, dict[str, Any]]:
    found = {}
    for entry, entry_spans in _content()[name].items():
        for one in entry_spans:
            if parse_version(one["from"]) <= version and (one["to"] is None or version <= parse_version(one["to"])):
                found[entry] = one
                break
    return found
