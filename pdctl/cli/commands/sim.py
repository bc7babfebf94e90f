"""pdctl sim."""

from __future__ import annotations

import typer

from pdctl.cli.result import Result

CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def command(ctx: typer.Context) -> Result:
    """Run one simulated engine in the foreground, with the flags of `vllm serve`. All options: `pdctl sim -- --help`."""
    from pdctl.sim.__main__ import main

    return Result(exit_code=main(ctx.args), quiet=True)
