"""`python -m pdctl.proxy`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError
from pdctl.proxy.options import Options, parse_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.connectors.base import HandOver


def main(argv: Sequence[str]) -> int:
    """Run the proxy in the foreground; return the exit code."""
    try:
        options = parse_options(argv)
        handover = _handover(options)
    except PdctlError as error:
        hint = f"\n\nhint: {error.fix}" if error.fix else ""
        sys.stderr.write(f"error: {error}{hint}\n")
        return error.exit_code
    except SystemExit as done:  # --help
        return int(done.code or 0)
    from pdctl.proxy.server import serve

    return serve(options, handover)


def _handover(options: Options) -> HandOver | None:
    if options.connector == "none":
        return None
    from pdctl.connectors.registry import find_connector

    return find_connector(options.connector).handover


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
