"""The proxy as a process, and clients of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Payloads of the events: parsed, but for `[DONE]`."""
        blocks = [block[6:] for block in self.body.decode().split("\n\n") if block.startswith("data: ")]
        return [block if block == "[DONE]" else json.loads(block) for block in blocks]

    @property
    def text(self) -> str:
        """The text of all events' first choices."""
        return "".join(one["choices"][0].get("text", "") for one in self.events if one != "[DONE]" and one["choices"])


class Proxy:
    """A proxy process; `lines` is what it said."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pdctl.proxy", *arguments, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.lines: list[str] = []
        self._first: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        line = self._first.get(timeout=20)
        if "serving on http://" not in line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            code = self.stop()
            raise AssertionError(f"exit code {code}: {self.lines}")
        self.port = int(line.rsplit(":", 1)[1])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if len(self.lines) == 1:
                self._first.put(line.rstrip())
        self._first.put("it ended")

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait(5)
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            given = {"content-type": "application/json"} if raw is not None else {}
            connection.request(method, path, raw, {**given, **(headers or {})})
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, response.read())
        finally:
            connection.close()

    def post(self, body: Any, path: str = "/v1/completions", **headers: str) -> Answer:
        return self.ask("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, {name.replace("_", "-"): value for name, value in headers.items()})

    def metric(self, name: str) -> float:
        """Return the sum of a metric's rows."""
        rows = self.get("/metrics").body.decode().splitlines()
        found = [float(row.rsplit(" ", 1)[1]) for row in rows if row.partition(" ")[0].partition("{")[0] == name]
        return sum(found)

    def ready(self) -> Proxy:
        eventually(lambda: self.get("/health").status == 200, "the proxy to be ready")
        return self


def eventually(check: Callable[[], Any], what: str, timeout_s: float = 15.0) -> Any:
    """Return the first true result of a check."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.02)
