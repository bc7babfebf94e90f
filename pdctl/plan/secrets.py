"""Which variables are secrets by their name, whoever put them into `env`, and an environment without their values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

REDACTED = "[redacted]"
_SECRET = re.compile(r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Say whether a variable's value must not be shown: MY_TOKEN, AWS_SECRET_ACCESS_KEY; not TOKENIZERS_PARALLELISM."""
    return bool(_SECRET.search(name))


def shown_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment fit for eyes and logs."""
    return {name: REDACTED if is_secret(name) else value for name, value in env.items()}
