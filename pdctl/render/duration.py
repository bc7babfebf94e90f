"""Durations for people."""

from __future__ import annotations


def short_duration(seconds: float | None) -> str:
    """Write 4.2 -> `4s`, 512 -> `8m32s`, 90000 -> `1d1h`; None -> `-`."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return "".join(f"{count}{unit}" for count, unit in parts[:2])


def ago(seconds: float) -> str:
    """Write how long ago something was: `just now`, `3 min ago`, `2 h ago`."""
    if seconds < 60:
        return "just now" if seconds < 10 else f"{int(seconds)} s ago"
    if seconds < 7200:
        return f"{int(seconds // 60)} min ago"
    return f"{int(seconds // 3600)} h ago" if seconds < 172800 else f"{int(seconds // 86400)} days ago"
