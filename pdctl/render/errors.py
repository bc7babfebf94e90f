"""Error text: one line that says what is wrong and where, one that says what to do."""

from __future__ import annotations

import json
import sys
from typing import Any

from pdctl.errors import Finding, LaunchError, PdctlError, PreflightError, Problem


def show_error(error: PdctlError, *, as_json: bool) -> None:
    """Print an error: text on stderr, or JSON on stdout."""
    if as_json:
        sys.stdout.write(json.dumps(error_document(error), indent=2) + "\n")
        return
    sys.stderr.write(error_text(error, colour=_colours()))


def error_document(error: PdctlError) -> dict[str, Any]:
    """Return an error's JSON form."""
    fields: dict[str, Any] = {
        "type": type(error).__name__, "message": str(error), "where": error.where, "fix": error.fix, "exit_code": error.exit_code,
    }  # fmt: skip
    problems = getattr(error, "problems", ())
    if problems:
        fields["problems"] = [vars(problem) for problem in problems]
    findings = getattr(error, "findings", ())
    if findings:
        fields["findings"] = [vars(finding) for finding in findings]
    if isinstance(error, LaunchError):
        fields |= {"instance": error.instance, "cause": error.cause, "lines": list(error.lines)}
    return {"schema": 1, "error": fields}


def error_text(error: PdctlError, *, colour: bool) -> str:
    """Return an error's text, ending in a newline."""
    head = "\x1b[1;31merror:\x1b[0m" if colour else "error:"
    hint = "\x1b[1;36mhint:\x1b[0m" if colour else "hint:"
    problems: tuple[Problem | Finding, ...] = getattr(error, "problems", ()) or getattr(error, "findings", ())
    if problems:
        text = "".join(f"{head} {_without_fix(one)}\n{_hint(hint, one.fix)}" for one in problems)
        return text if not isinstance(error, PreflightError) else f"{text}\nnothing was started\n"
    text = f"{head} {error}\n"
    if isinstance(error, LaunchError):
        if error.cause:
            text += f"\n  cause: {error.cause}\n"
        if error.lines:
            text += "\n" + "".join(f"  | {line}\n" for line in error.lines)
    return text + (f"\n{_hint(hint, error.fix)}" if error.fix else "")


def _without_fix(one: Problem | Finding) -> str:
    fields = vars(one) | {"fix": ""}
    return str(type(one)(**fields))


def _hint(head: str, fix: str) -> str:
    return f"{head} {fix}\n" if fix else ""


def _colours() -> bool:
    import os

    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
