"""The typer application over the command table, and the one place where errors become text and an exit status."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

import typer
import typer.core
import typer.main

from pdctl import __version__
from pdctl.cli.result import Result
from pdctl.cli.table import COMMANDS
from pdctl.errors import PdctlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
_INTERRUPTED = 130
_EPILOG = "A first cluster: `pdctl up examples/sim-quickstart.yaml`. `pdctl COMMAND --help` explains a command."


class LazyGroup(typer.core.TyperGroup):
    """Commands by the table; a module is imported when its command is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        return _load(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Name the nearest command instead of only saying no."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, n=1)
            raise UsageError(
                f"no command `{name}`", fix=f"did you mean `pdctl {near[0]}`?" if near else "see `pdctl --help`"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _load(name: str) -> Any:
    module = importlib.import_module(COMMANDS[name][0])
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    settings = {**_SETTINGS, **getattr(module, "CONTEXT_SETTINGS", {})}
    app.command(name, context_settings=settings)(module.command)
    return typer.main.get_command(app)


app = typer.Typer(
    cls=LazyGroup, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, context_settings=_SETTINGS,
    epilog=_EPILOG,
)  # fmt: skip


@app.callback()
def options(
    ctx: typer.Context,
    verbose: bool = typer.Option(False, "-v", "--verbose", envvar="PDCTL_VERBOSE", help="Show tracebacks with errors."),
    version: bool = typer.Option(False, "--version", help="Show pdctl's version and exit."),
) -> None:
    """pdctl: prefill/decode-disaggregated LLM serving with vLLM, from one topology file."""
    if version:
        sys.stdout.write(f"pdctl {__version__}\n")
        raise typer.Exit
    ctx.obj = {"verbose": verbose}


def run(args: Sequence[str]) -> int:
    """Run one command line and return the exit status; nothing is raised."""
    as_json = _wants_json(args)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        outcome = typer.main.get_command(app).main(
            list(args), prog_name="pdctl", standalone_mode=False, auto_envvar_prefix="PDCTL"
        )
        return _show(outcome, as_json)
    except PdctlError as error:
        return _fail(error, args, as_json)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`pdctl logs | head`): not an error; keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - click's own errors have no public base class in every typer release
        return _other(error, args, as_json)


def _show(outcome: Any, as_json: bool) -> int:
    if isinstance(outcome, int):  # typer.Exit's code
        return outcome
    if not isinstance(outcome, Result):
        return 0
    if not outcome.quiet:
        from pdctl.render.output import show

        show(outcome.data, outcome.view, outcome.text, as_json=as_json)
    return outcome.exit_code


def _fail(error: PdctlError, args: Sequence[str], as_json: bool) -> int:
    from pdctl.render.errors import show_error

    show_error(error, as_json=as_json)
    if "-v" in args or "--verbose" in args or os.environ.get("PDCTL_VERBOSE"):
        traceback.print_exc()
    return error.exit_code


def _other(error: Exception, args: Sequence[str], as_json: bool) -> int:
    if type(error).__name__ == "Abort":
        sys.stderr.write("aborted\n")
        return 1
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        ctx = getattr(error, "ctx", None)
        command = ctx.command_path if ctx is not None else "pdctl"
        return _fail(UsageError(format_message().rstrip("."), fix=f"see `{command} --help`"), args, as_json)
    bug = PdctlError(
        f"unexpected {type(error).__name__}: {error}", fix="this is a bug in pdctl: run it with -v for the traceback"
    )
    return _fail(bug, args, as_json)


def _wants_json(args: Sequence[str]) -> bool:
    pairs = zip(args, [*args[1:], ""], strict=True)
    return "--json" in args or "--format=json" in args or ("--format", "json") in pairs


def _interrupt(signum: int, frame: Any) -> None:  # noqa: ARG001 - signal's signature
    raise KeyboardInterrupt
