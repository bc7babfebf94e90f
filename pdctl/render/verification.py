"""A verification for people."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def show_verification(data: Mapping[str, Any]) -> None:
    """Print the headline, one row a pair, and what deserves a word."""
    from pdctl.render.console import print_rows

    write = sys.stdout.write
    write(f"{data['headline']}\n")
    if data.get("pairs"):
        rows = [
            (
                f"{pair['producer']} -> {pair['consumer']}", pair["verdict"], _number(pair.get("tokens"), "{:.0f}"),
                _number(pair.get("bytes"), "{:.2f}", 1e-6), _number(pair.get("seconds"), "{:.4f}"), _number(pair.get("gb_per_s"), "{:.2f}"),
                pair.get("reason") or "",
            )
            for pair in data["pairs"]
        ]  # fmt: skip
        print_rows(("PAIR", "KV", "TOKENS", "MB", "SECONDS", "GB/S", "WHY"), rows, first_to_go=("SECONDS", "MB"))
    equality = data.get("equality")
    if equality:
        write(
            f"equality: {equality.get('text') or equality}\n"
            if isinstance(equality, Mapping)
            else f"equality: {equality}\n"
        )
    for warning in data.get("warnings") or ():
        write(f"warning: {warning}\n")


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else form.format(value * scale)
