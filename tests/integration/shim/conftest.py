"""Small instances under a real shim."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import pdctl.shim
from tests.conftest import eventually

SHIM = [sys.executable, "-I", "-S", pdctl.shim.__file__]
SERVER = """
import http.server, sys, threading
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'ok')
    def log_message(self, *args): pass
server = http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), H)
"""
SERVE = SERVER + "print('serving', flush=True); server.serve_forever()\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Lines:
    """Lines of a running process with a deadline for each. Reads the pipe itself: `select` can't see into a buffered reader."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._fd = process.stdout.fileno()
        self._data = b""

    def next(self, timeout_s: float) -> bytes | None:
        """Return the next line, or None if none came in time or the output ended."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self._data:
            if not select.select([self._fd], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            piece = os.read(self._fd, 65536)
            if not piece:
                return None
            self._data += piece
        line, _, self._data = self._data.partition(b"\n")
        return line


@dataclass
class Cluster:
    """One cluster directory and the verbs on it."""

    root: Path
    ports: dict[str, int] = field(default_factory=dict)

    def call(self, verb: str, *args: str, stdin: Any = None, code: int | None = 0) -> dict[str, Any]:
        argv = [*SHIM, verb, *([str(self.root)] if verb != "ports" else []), *args]
        data = b"" if stdin is None else json.dumps(stdin).encode()
        done = subprocess.run(argv, input=data, capture_output=True, timeout=60)
        assert code is None or done.returncode == code, (done.stdout, done.stderr)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def spec(self, name: str, code: str, **changes: Any) -> dict[str, Any]:
        """Return the spec of a Python program that gets its port as argument."""
        port = self.ports.setdefault(name, free_port())
        spec: dict[str, Any] = {
            "schema": 1, "cluster": "c", "instance": name, "role": "producer", "host": "local", "address": "127.0.0.1",
            "url": f"http://127.0.0.1:{port}", "argv": [sys.executable, "-I", "-S", "-c", code, str(port)], "env_names": [], "secret_names": [],
            "gpus": [], "ports": {"http": [port, 1]}, "metrics": None, "phases": [], "stop_timeout_s": 5, "hash": "h",
            "health": {"url": f"http://127.0.0.1:{port}/health", "interval_s": 0.2, "timeout_s": 2, "startup_timeout_s": 20},
            "restart": {"policy": "on-failure", "max": 3, "window_s": 60, "backoff_s": 0.1}, "logs": {"max_bytes": 200_000, "keep": 2},
        }  # fmt: skip
        for key, value in changes.items():
            spec[key] = {**spec[key], **value} if isinstance(value, dict) and isinstance(spec[key], dict) else value
        return spec

    def start(self, *specs: dict[str, Any]) -> dict[str, Any]:
        return self.call(
            "start",
            stdin={"cluster_info": {"n": 1}, "instances": [{"spec": one, "env": {"GIVEN": "1"}} for one in specs]},
        )

    def state(self, name: str = "a") -> dict[str, Any]:
        found: dict[str, Any] = self.call("query")["instances"][name]
        return found

    def wait(self, state: str, name: str = "a", timeout_s: float = 15.0) -> dict[str, Any]:
        found: dict[str, Any] = eventually(
            lambda: (one := self.state(name))["state"] == state and one, timeout_s, f"{name} is {state}"
        )
        return found

    def stop(self, code: int | None = 0, **order: Any) -> dict[str, Any]:
        return self.call("stop", stdin={"instances": None, "timeout_s": 3, **order}, code=code)

    def logs(self, *args: str) -> list[str]:
        done = subprocess.run(
            [*SHIM, "logs", str(self.root), *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=True,
        )
        return done.stdout.decode(errors="replace").splitlines()

    def texts(self, *args: str) -> list[str]:
        """Return the instance's own lines, without the supervisor's."""
        return [line.split(" ", 2)[2] for line in self.logs(*args) if not line.split(" ", 2)[2].startswith("pdctl: ")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    one = Cluster(tmp_path / "home" / "c")
    yield one
    marked = f"{one.root}".encode()
    if one.root.exists():
        one.stop(code=None)
    for entry in Path("/proc").iterdir():  # whatever a failed test left
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marked in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue
