"""pdctl proxy."""

from __future__ import annotations

import typer

from pdctl.cli.result import Result

CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def command(ctx: typer.Context) -> Result:
    """Run the built-in proxy in the foreground, as `up` starts it. All options: `pdctl proxy -- --help`."""
    from pdctl.proxy.__main__ import main

    return Result(exit_code=main(ctx.args), quiet=True)
