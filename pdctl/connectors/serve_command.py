"""A `vllm serve` command line as somebody wrote it, read into what `judge` looks at. Pure."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from pdctl.connectors.config_fields import parse_config
from pdctl.connectors.judge import HandWritten
from pdctl.connectors.port_claims import port_number
from pdctl.vllm.flags import normal_flag
from pdctl.vllm.releases import release
from pdctl.vllm.version import parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ROLE_OF = {"kv_producer": "producer", "kv_consumer": "consumer"}


def read_serve_command(name: str, text: str, version: str, host: str, role: str | None = None) -> HandWritten:
    """Read one command, with assignments before it as a shell has them.

    The role is the config's unless `role` says what the engine is meant to be. Raises ValueError that says what cannot be read.
    """
    try:
        words = [
            word
            for word in shlex.split(text.replace("\\\n", " "))
            if word not in ("export", "nohup", "env", "&", "exec")
        ]
    except ValueError as error:
        raise ValueError(f"{name}: the command cannot be split into words: {error}") from error
    env: dict[str, str] = {}
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        env[match[1]] = match[2]
        words.pop(0)
    flags = _flags(words, version)
    config = flags.get("kv-transfer-config")
    meant = role or _role_of(config)
    side = port_number(env.get("VLLM_NIXL_SIDE_CHANNEL_PORT"))
    return HandWritten(
        name, meant, version, port_number(flags.get("port", 8000)) or 8000, port_number(flags.get("tensor-parallel-size", 1)) or 1, host,  # type: ignore[arg-type]
        config, side, env, tuple(flags), advise=True,
    )  # fmt: skip


def _role_of(config: Any) -> str:
    if config is None:
        return "aggregated"
    try:
        return _ROLE_OF.get(str(parse_config(config).get("kv_role")), "producer")
    except ValueError:
        return "producer"


def _flags(words: Sequence[str], version: str) -> dict[str, Any]:
    """Return long flag -> its one value, True for a bare one; a dotted `--kv-transfer-config.x` is folded into the JSON."""
    try:
        known = release(parse_version(version)).flags
    except ValueError:
        known = {}
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word):
            written, equals, value = word.partition("=")
            name = normal_flag(written)
            found[name] = value if equals else True
            takes_none = name in known and known[name].kind in ("bool", "switch")
            name = "" if equals or takes_none else name
        elif name:
            found[name] = word
            name = ""
    dotted = {key.partition(".")[2]: value for key, value in found.items() if key.startswith("kv-transfer-config.")}
    if dotted:
        whole = found.get("kv-transfer-config")
        found["kv-transfer-config"] = {**(parse_config(whole) if isinstance(whole, str) else {}), **dotted}
    return found
