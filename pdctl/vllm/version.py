"""vLLM versions as tuples."""

from __future__ import annotations

import re

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """Turn `0.22.1`, `0.22.1rc1` or `0.22.1+cu130` into (0, 22, 1), `0.10.1.1` into (0, 10, 1, 1). Raises ValueError for anything else.

    A pre-release counts as its release: its connectors and flags are those that the release will have.
    """
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:[.+-]?(?:rc|a|b|dev|post)\d*\S*|\+\S+)?$", text.strip())
    if not match:
        raise ValueError(f"{text!r} is no vLLM version")
    major, minor, patch, fourth = match.groups()
    return (int(major), int(minor), int(patch or 0), *((int(fourth),) if fourth else ()))


def format_version(version: Version) -> str:
    """Write (0, 22, 1) as `0.22.1`."""
    return ".".join(str(part) for part in version)
