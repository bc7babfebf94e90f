"""Start-up cost as a set of loaded modules: exact, never flaky. bench/latency.py has the times."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import typer.main

import pdctl
from pdctl import __version__
from pdctl.cli.app import app
from pdctl.cli.table import COMMANDS

HELP = Path(pdctl.__file__).parent / "cli" / "help.txt"
HEAVY = {"pydantic", "yaml", "rich", "paramiko", "aiohttp", "zmq", "psutil", "pynvml", "typer", "uvloop", "orjson"}


def loaded(*args: str) -> set[str]:
    """Return the heavy modules that a command line loads in a fresh interpreter."""
    code = (
        "import sys, runpy; sys.argv = ['pdctl', *sys.argv[1:]]\n"
        "try: runpy.run_module('pdctl', run_name='__main__')\n"
        "except SystemExit: pass\n"
        f"print('LOADED', *sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


@pytest.mark.parametrize(
    ("args", "allowed"),
    [
        ((), set()),
        (("--help",), set()),
        (("--version",), set()),
        (("status", "--help"), {"typer"}),
        (("status", "--json"), {"typer"}),
        (("ls", "--json"), {"typer"}),
        (("logs",), {"typer"}),
        (("down",), {"typer"}),
    ],
)
def test_commands_load_only_what_they_need(
    args: tuple[str, ...], allowed: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PDCTL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert loaded(*args) <= allowed


def test_the_static_help_is_what_the_application_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = io.StringIO()
    with redirect_stdout(shown):
        typer.main.get_command(app).main(["--help"], prog_name="pdctl", standalone_mode=False)
    assert shown.getvalue() == HELP.read_text(encoding="utf-8"), f"write this into {HELP.name}:\n{shown.getvalue()}"


def test_every_command_is_a_module_with_help() -> None:
    group = typer.main.get_command(app)
    for name in COMMANDS:
        command = group.get_command(None, name)  # type: ignore[attr-defined]
        assert command is not None
        assert command.help, name


def test_version() -> None:
    done = subprocess.run([sys.executable, "-m", "pdctl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"pdctl {__version__}\n"
