"""Everything that can go wrong, as fields.

    PdctlError                       what, where, fix, exit_code
    ├─ UsageError            2       command line
    ├─ TopologyError         2       list of Problem: the file is wrong
    ├─ PlanError             2       list of Problem: GPUs, ports, connector rules
    ├─ PreflightError        4       list of Finding(host, check, what, fix)
    ├─ TransportError        1       a host could not be reached or a command on it failed
    ├─ LaunchError           1       instance, root cause, log lines
    ├─ LockHeld              1       by whom, since when, for what

Raised deep, caught once in cli. Tests assert fields, not prose.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a topology file, with its place and the way out."""

    path: str
    """Dotted path of the key, such as `prefill.tp` or `hosts[1].address`; empty for the file itself."""
    what: str
    """What is wrong, without a full stop."""
    fix: str = ""
    """What to write instead, as an instruction; empty only if `what` says it."""
    file: str = ""
    line: int = 0
    """1-based; 0 when the problem has no place in a file (a `--set` option, an environment variable)."""
    column: int = 0
    """1-based."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: " if self.file else ""
        path = f"{self.path}: " if self.path else ""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{place}{path}{self.what}{fix}"


@dataclass(frozen=True)
class Finding:
    """One result of looking at a host before launch."""

    host: str
    check: str
    what: str
    fix: str = ""
    blocker: bool = True

    def __str__(self) -> str:
        fix = f"; {self.fix}" if self.fix else ""
        return f"{self.host}: {self.check}: {self.what}{fix}"


class PdctlError(Exception):
    """Base of all errors that a user is shown; `exit_code` is pdctl's exit status (contract, section 3)."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class UsageError(PdctlError):
    """The command line is wrong."""

    exit_code = 2


class _ProblemsError(PdctlError):
    exit_code = 2

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class TopologyError(_ProblemsError):
    """The topology file cannot be read or does not follow the schema; all problems at once."""


class PlanError(_ProblemsError):
    """The topology is well-formed but cannot be planned: GPUs, ports, connector rules; all problems at once."""


class PreflightError(PdctlError):
    """A host is not fit for what the plan wants of it."""

    exit_code = 4

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = tuple(findings)


class TransportError(PdctlError):
    """A host could not be reached, or a command of pdctl's own failed there."""

    def __init__(self, host: str, what: str, *, fix: str = "", away: bool = False) -> None:
        """`away`: the line is broken, which may mend; trying again makes sense."""
        super().__init__(what, where=host, fix=fix)
        self.away = away
        self.host = host


class LaunchError(PdctlError):
    """An instance died or never became ready."""

    def __init__(
        self, instance: str, what: str, *, cause: str = "", lines: tuple[str, ...] = (), fix: str = ""
    ) -> None:
        super().__init__(what, where=instance, fix=fix)
        self.instance = instance
        self.cause = cause
        """The root cause in one sentence, if its signature is known."""
        self.lines = lines
        """The decisive lines of the instance's log, oldest first."""


class LockHeld(PdctlError):
    """Somebody else is changing this cluster."""

    def __init__(self, cluster: str, *, who: str, since: str, command: str) -> None:
        super().__init__(
            f"{who} has been running `{command}` on it since {since}",
            where=cluster,
            fix="wait for it to end, or stop that command; the lock goes with its process",
        )
        self.who = who
        self.since = since
        self.command = command
