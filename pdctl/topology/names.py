"""Names of instances and their aliases."""

from __future__ import annotations

import re

_SHORT = {"p": "producer", "d": "consumer", "a": "aggregated"}
_LONG = {"prefill": "producer", "decode": "consumer"}


def full_name(name: str) -> str:
    """Return the instance that an alias means: p0, prefill-0 -> producer-0; d0 -> consumer-0; others as they are."""
    short = re.fullmatch(r"([pda])-?([0-9]+)", name)
    if short:
        return f"{_SHORT[short[1]]}-{short[2]}"
    role, dash, ordinal = name.rpartition("-")
    return f"{_LONG[role]}{dash}{ordinal}" if role in _LONG else name
