"""Options that several commands share."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from pdctl.errors import UsageError

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="Topology file; `-` reads standard input.")]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key of the file, such as --set decode.replicas=2; repeatable."
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "-c", "--cluster", metavar="NAME", envvar="PDCTL_CLUSTER", help="Cluster, when more than one is known here."
    ),
]
NewKeysOption = Annotated[
    bool,
    typer.Option(
        "--accept-new-host-keys",
        envvar="PDCTL_ACCEPT_NEW_HOST_KEYS",
        help="Note the keys of ssh hosts that known_hosts lacks; a changed key is refused all the same.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys on stdout.")]

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(option: str, text: str) -> float:
    """Read `30s`, `20m`, `1.5h` or a plain number of seconds. Raises UsageError that names the option."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|)", text.strip())
    if not match:
        raise UsageError(f"{option}: {text!r} is no duration", fix="write a number with s, m or h, such as 20m")
    return float(match[1]) * _UNITS_S[match[2]]
