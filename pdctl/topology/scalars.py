"""What a plain YAML scalar means: numbers as in YAML 1.2, YAML 1.1's true and false, else text.

PyYAML follows YAML 1.1, in which `1:30` is 90, `010` is 8, `2024-01-01` a date and `1e9` text. In a topology these are
a MIG id, a slip, a revision and a number.
"""

from __future__ import annotations

import math
import re
from typing import Any

_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]*)")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][+-]?[0-9]+)?")
_MOST_DIGITS = 30
"""A longer row of digits is an id or a hash, kept as text; Python also refuses to read some thousands of digits."""
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **{word: True for low in ("true", "yes", "on") for word in (low, low.capitalize(), low.upper())},
    **{word: False for low in ("false", "no", "off") for word in (low, low.capitalize(), low.upper())},
}


def plain_value(text: str) -> Any:
    """Return the null, boolean, number or text that an unquoted scalar stands for."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MOST_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _HEX.fullmatch(text):
        return int(text, 16)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def is_null(text: str) -> bool:
    """Tell whether an unquoted scalar says that there is no value."""
    return text in _WORDS and _WORDS[text] is None


def shown(value: Any) -> str:
    """Write a value for a message, as the file would, shortened."""
    if value is None:
        text = "nothing"
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        text = repr(value)
    elif isinstance(value, list):
        text = "a list" if value else "an empty list"
    elif isinstance(value, dict):
        text = "a mapping"
    else:
        text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
