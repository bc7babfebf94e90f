"""Shared fixtures: a pdctl of one's own, with its own home, ports and nothing left behind."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml

pytest_plugins = ["tests.beds"]
ROOT = Path(__file__).parent.parent
# No example may fail because the machine was busy: tests don't time.
hypothesis.settings.register_profile("pdctl", deadline=None)
hypothesis.settings.load_profile("pdctl")
_BLOCKS = range(20000, 32000, 100)
_NEXT = itertools.count(os.getpid() % len(_BLOCKS))
"""Blocks are dealt out in turn, from a place of this process's own, round and round: no run is too long for them."""


def eventually(check: Callable[[], Any], timeout_s: float = 10.0, what: str = "") -> Any:
    """Return the first true value of `check`; fails after `timeout_s`, naming what was waited for."""
    end = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > end:
            pytest.fail(f"not true after {timeout_s} s: {what or check}")
        time.sleep(0.02)


def free_block(count: int = 100) -> int:
    """Return the first of `count` adjacent free ports below the ephemeral range."""
    for turn in itertools.islice(_NEXT, len(_BLOCKS)):
        base = _BLOCKS[turn % len(_BLOCKS)]
        if all(_free(port) for port in range(base, base + count)):
            return base
    raise RuntimeError("no block of free ports")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def processes_of(home: Path) -> dict[int, str]:
    """Return live processes (pid -> command line) that carry a tree mark of a cluster under `home`, or are its shims."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        marked = f"PDCTL_HOME={home}\0".encode() in environ + b"\0" or str(home) in command
        if marked and state != "Z":
            found[int(entry.name)] = command
    return found


@dataclass
class Done:
    """A finished pdctl command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.out)
        return data


@dataclass
class Pdctl:
    """The command line as a user has it, with a home of its own."""

    home: Path
    cwd: Path
    env: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PDCTL_", "COLUMNS"))}
        kept = {key: os.environ[key] for key in ("PDCTL_VLLM_PYTHON",) if key in os.environ}
        return {**clean, **kept, "PDCTL_HOME": str(self.home), **self.env}

    def popen(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pdctl", *args], cwd=self.cwd, env=self.environment(), text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **options},
        )  # fmt: skip

    def __call__(self, *args: str, timeout_s: float = 60.0) -> Done:
        process = self.popen(*args)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"pdctl {' '.join(args)} did not end in {timeout_s} s\n{out}\n{err}")
        return Done(process.returncode, out, err)

    def ok(self, *args: str, timeout_s: float = 60.0) -> Done:
        done = self(*args, timeout_s=timeout_s)
        assert done.code == 0, f"pdctl {' '.join(args)}: exit {done.code}\n{done.out}\n{done.err}"
        return done

    def status(self, *args: str) -> dict[str, Any]:
        return self("status", "--json", *args).json

    def instance(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in self.status()["instances"] if one["name"] == name)
        return found

    def topology(self, filename: str = "topology.yaml", **keys: Any) -> Path:
        """Write a topology of simulated engines with free ports; `keys` are merged over the defaults."""
        base = free_block()
        data: dict[str, Any] = {
            "name": "test", "model": "sim/tiny", "layout": "1P1D", "connector": "nixl", "engine": {"kind": "sim"},
            "proxy": {"port": base + 99}, "ports": {"base": base, "size": 99},
            "health": {"interval": "1s"}, "restart": {"backoff": "1s"},
        }  # fmt: skip
        for key, value in keys.items():
            if value is None:
                data.pop(key, None)
            elif isinstance(value, Mapping) and isinstance(data.get(key), Mapping):
                data[key] = {**data[key], **value}
            else:
                data[key] = value
        path = self.cwd / filename
        path.write_text(yaml.safe_dump(data, sort_keys=False))
        return path


@pytest.fixture
def pdctl(tmp_path: Path) -> Iterator[Pdctl]:
    """A pdctl whose clusters are taken down after the test, and whose processes are all gone then."""
    home, cwd = tmp_path / "home", tmp_path / "work"
    cwd.mkdir()
    command = Pdctl(home, cwd)
    yield command
    known = sorted(path.stem for path in (home / ".known").glob("*.json"))
    failures = []
    for name in known:
        done = command("down", "-c", name, "--timeout", "5s")
        if done.code:
            failures.append(f"down {name}: exit {done.code}\n{done.out}{done.err}")
    left = processes_of(home)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert not failures, failures
    assert not left, f"left running: {left}"
