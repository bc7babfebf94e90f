"""`pdctl` and `python -m pdctl`: answers plain help and version before anything is imported."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return the exit status."""
    args = sys.argv[1:]
    if args in ([], ["--help"], ["-h"]):
        from pathlib import Path

        sys.stdout.write((Path(__file__).parent / "cli" / "help.txt").read_text(encoding="utf-8"))
        return 0
    if args == ["--version"]:
        from pdctl import __version__

        sys.stdout.write(f"pdctl {__version__}\n")
        return 0
    from pdctl.cli.app import run

    return run(args)


if __name__ == "__main__":
    sys.exit(main())
