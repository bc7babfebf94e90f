"""Talk to the shim of a host: install it by content hash, call its verbs, read its JSON."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdctl.errors import TransportError
from pdctl.hosts.bundle import source_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pdctl.hosts.transport import Stream, Transport

_SHIM = Path(__file__).parent.parent / "shim.py"
_LEASE_S = 20.0
"""A lock over a network ends when its holder has not been heard from for so long."""
_NO_SUCH_FILE = 2
"""Exit status of Python for a script that is not there."""


class WatchStream:
    """A running `watch` of one cluster on one host."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the whole state first, then one message a change, until closed."""
        for line in self._stream.lines():
            yield json.loads(line)

    def close(self) -> None:
        self._stream.close()


class HeldLock:
    """The cluster's lock on one host; released by `close` and by the death of this process."""

    def __init__(self, stream: Stream | None, held_by: Mapping[str, Any] | None, *, beats: bool = False) -> None:
        """`beats`: keep saying that we are there, in a thread."""
        self._stream = stream
        self.held_by = held_by
        """Who holds it instead of us; None when it is ours."""
        self._closed = threading.Event()
        if stream is not None and beats:
            threading.Thread(target=self._beat, args=(stream,), name="lock", daemon=True).start()

    def _beat(self, stream: Stream) -> None:
        with suppress(TransportError):
            while not self._closed.wait(_LEASE_S / 4):
                stream.write(b"\n")

    def close(self) -> None:
        self._closed.set()
        if self._stream:
            self._stream.close()
            self._stream = None


class ShimClient:
    """The shim of one host, for one workdir."""

    def __init__(self, transport: Transport, workdir: str, python: str, *, suffix: str = "") -> None:
        """`workdir` is absolute, or starts at the login's home; `python` is any Python 3.9+ there.

        `suffix` is part of each cluster's folder: hosts that share a home directory must not share that.
        """
        self.transport = transport
        self.host = transport.host
        self.workdir = workdir
        self.python = python
        self._suffix = suffix
        self._source = _SHIM.read_bytes()
        self._path = f"{workdir}/shim-{hashlib.sha256(self._source).hexdigest()[:16]}.py"

    def root(self, cluster: str) -> str:
        """Return the cluster's directory on the host."""
        return f"{self.workdir}/{cluster}{self._suffix}"

    def start(
        self, cluster: str, info: Mapping[str, Any] | None, instances: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Start instances; returns `started`, `running`, `conflict` and `failed` (see the verb)."""
        payload = {"cluster_info": info, "instances": list(instances)}
        return self._call("start", [self.root(cluster)], payload, timeout_s=120)

    def bring_pdctl(self) -> str:
        """Put pdctl's source on the host, once for each content; returns its file name in the workdir."""
        name, data = source_bundle()
        path = f"{self.workdir}/{name}"
        if self.transport.run(["/bin/sh", "-c", 'test -s "$1"', "test", path], timeout_s=20).exit_code:
            self.transport.put(path, data)
        return name

    def query(self, cluster: str, *, load: bool = False) -> dict[str, Any]:
        """Return the truth about a cluster on this host, checked against the process table."""
        return self._call("query", [self.root(cluster), *(["--load"] if load else [])], None, timeout_s=20)

    def stop(
        self,
        cluster: str,
        instances: Sequence[str] | None = None,
        *,
        timeout_s: float = 30.0,
        purge: bool = False,
        order: Sequence[Sequence[str]] = (),
    ) -> dict[str, Any]:
        """End instances and prove that nothing is left; `left` names what is."""
        payload: dict[str, Any] = {"instances": instances, "timeout_s": timeout_s, "purge": purge}
        if order:
            payload["order"] = [list(group) for group in order]
        groups = max(1, len(order))
        return self._call("stop", [self.root(cluster)], payload, timeout_s=groups * (timeout_s + 30), may_fail=True)

    def busy_ports(self, ports: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
        """Return the ports that cannot be bound, with their owner where it can be seen."""
        answer = self._call("ports", [], {"ports": [list(port) for port in ports]}, timeout_s=20)
        return list(answer["busy"])

    def note(self, cluster: str, facts: Mapping[str, Any]) -> None:
        """Merge facts into the cluster's record on the host."""
        self._call("note", [self.root(cluster)], facts, timeout_s=20)

    def lock(self, cluster: str, who: Mapping[str, Any]) -> HeldLock:
        """Take the cluster's lock, or say who holds it."""
        self._ensure_installed()
        lease = {"lease_s": _LEASE_S} if self.transport.silent_loss else {}
        stream = self.transport.stream(
            self._argv("lock", [self.root(cluster)]), first_input=json.dumps({**who, **lease}).encode() + b"\n"
        )
        answer = json.loads(next(stream.lines(), b'{"error": "no answer"}'))
        if "error" in answer:
            stream.close()
            raise TransportError(self.host, f"cannot lock {self.root(cluster)}: {answer['error']}")
        if answer["held"]:
            return HeldLock(stream, None, beats=bool(lease))
        stream.close()
        return HeldLock(None, answer.get("by") or {})

    def watch(self, cluster: str) -> WatchStream:
        """Follow all state changes of a cluster on this host."""
        self._ensure_installed()
        return WatchStream(self.transport.stream(self._argv("watch", [self.root(cluster)])))

    def log_lines(self, cluster: str, options: Sequence[str], instances: Sequence[str] = ()) -> Stream:
        """Stream `<instance> <timestamp> <text>` lines, merged by time."""
        self._ensure_installed()
        return self.transport.stream(self._argv("logs", [self.root(cluster), *instances, *options]))

    def _argv(self, verb: str, args: Sequence[str]) -> list[str]:
        # -I -S: no environment, no site-packages: starts in the time of a bare interpreter and cannot be broken by them.
        return [self.python, "-I", "-S", self._path, verb, *args]

    def _ensure_installed(self) -> None:
        probe = self.transport.run(self._argv("--version", []), timeout_s=20)
        if probe.exit_code:
            self.transport.put(self._path, self._source, mode=0o600)

    def _call(
        self, verb: str, args: Sequence[str], payload: Any, *, timeout_s: float, may_fail: bool = False
    ) -> dict[str, Any]:
        stdin = json.dumps(payload).encode() if payload is not None else b""
        done = self.transport.run(self._argv(verb, args), stdin=stdin, timeout_s=timeout_s)
        if done.exit_code == _NO_SUCH_FILE and not done.stdout:
            self.transport.put(self._path, self._source, mode=0o600)
            done = self.transport.run(self._argv(verb, args), stdin=stdin, timeout_s=timeout_s)
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            detail = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
            raise TransportError(
                self.host, f"the shim's `{verb}` failed: {detail[-1] if detail else 'no answer'}"
            ) from None
        if "error" in answer:
            raise TransportError(self.host, f"the shim's `{verb}` failed: {answer['error']}")
        if done.exit_code and not may_fail:
            raise TransportError(self.host, f"the shim's `{verb}` ended with exit code {done.exit_code}")
        return dict(answer)
