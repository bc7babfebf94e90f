"""The supervisor that pdctl leaves on a host: one file, standard library, Python 3.9+, Linux.

    python3 -I -S shim.py VERB ROOT ...          ROOT is <workdir>/<cluster>

    start ROOT    stdin {"cluster_info", "instances": [{"spec", "env"}]}; one supervisor for each instance
    query ROOT [--load]                          the truth, checked against the process table
    watch ROOT                                   the truth, then one line for each change, until stdin ends
    stop ROOT     stdin {"instances", "timeout_s", "purge", "order"}; ends trees and proves that nothing is left
    logs ROOT [INSTANCE...] [options]            `<instance> <time> <text>` lines, merged by time
    ports         stdin {"ports": [[address, port], ...]}; which of them cannot be bound, and who has them
    lock ROOT     first line of stdin {"who", "command"}; holds the cluster's lock until stdin ends
    note ROOT     stdin is merged into cluster.json

Each verb but logs, watch and lock prints one JSON object. A process is ours only by evidence: it descends from the supervisor (a
child subreaper), carries the tree's mark in its environment, writes to its log pipe, or was recorded with its start time.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import json
import os
import re
import select
import signal
import socket
import sys
import time
from collections import deque

TYPE_CHECKING = False  # importing typing would cost each start 5 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    State = dict[str, Any]
    Table = dict[int, "Process"]
    Tree = dict[int, int]

VERSION = "1"
STATE_SCHEMA = 1
LIVE = ("starting", "ready", "unhealthy", "restarting", "stopping")
EDGES = {
    None: ("starting", "failed"),
    "starting": ("starting", "ready", "failed", "restarting", "stopping", "stopped"),
    "ready": ("unhealthy", "restarting", "failed", "stopping", "stopped"),
    "unhealthy": ("ready", "restarting", "failed", "stopping", "stopped"),
    "restarting": ("starting", "stopping", "failed"),
    "stopping": ("stopped", "failed"),
    "failed": ("starting", "stopped"),
    "stopped": ("starting",),
}
CHUNK = 1 << 20
LONGEST_LINE = 1 << 16
PHASE_LINES = 400
"""Lines of one chunk that are searched for a phase: a flood must not cost a regex for each line."""
STATE_EVERY_S = 0.1
TERM_GRACE_S = 2.0
"""What is left of a tree after its front process died gets this long before SIGKILL."""
KILL_LIMIT_S = 5.0
FAILURES_UNTIL_UNHEALTHY = 3
SCAN_FIRST_S, SCAN_MAX_S = 0.1, 5.0
BACKOFF_MAX_S = 60.0
RUNS_KEPT = 20


# --- files -----------------------------------------------------------------------------------------------------------


def write_json(path: str, value: Any, mode: int = 0o600) -> None:
    """Write atomically: a reader sees the old or the new file, never half of one."""
    fresh = f"{path}.{os.getpid()}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(value, file)
        os.replace(fresh, path)
    except OSError:
        try:
            os.unlink(fresh)
        except OSError:
            pass
        raise


def read_json(path: str, default: Any = None) -> Any:
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return default


def make_dir(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)


def read_stdin_json() -> Any:
    data = sys.stdin.buffer.read()
    return json.loads(data) if data.strip() else {}


def instance_names(root: str) -> list[str]:
    try:
        names = os.listdir(root)
    except OSError:
        return []
    return sorted(name for name in names if os.path.exists(f"{root}/{name}/spec.json"))


# --- process table ---------------------------------------------------------------------------------------------------


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


class Process:
    """One line of the process table."""

    __slots__ = ("pid", "ppid", "session", "start", "state")

    def __init__(self, pid: int, ppid: int, session: int, start: int, state: str) -> None:
        self.pid, self.ppid, self.session, self.start, self.state = pid, ppid, session, start, state

    @property
    def alive(self) -> bool:
        return self.state not in ("Z", "X")


def process(pid: int | str) -> Process | None:
    """Return a process, or None. Its name may hold anything, so fields are counted from the last parenthesis."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return None
    fields = data[data.rindex(b")") + 2 :].split()
    return Process(int(pid), int(fields[1]), int(fields[3]), int(fields[19]), fields[0].decode())


def process_table() -> Table:
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = process(name)
            if found:
                table[found.pid] = found
    return table


def is_same(pid: int | None, start: int | None, table: Table | None = None) -> bool:
    """Say whether a pid is still the process that was recorded: same start time, and not a zombie."""
    if pid is None:
        return False
    found = table.get(pid) if table is not None else process(pid)
    return bool(found and found.start == start and found.alive)


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return ""


def send(pid: int, start: int, number: int) -> None:
    """Signal a process if it is still the one that was meant."""
    if is_same(pid, start):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


# --- the tree of an instance -----------------------------------------------------------------------------------------


def tree_mark(root: str, name: str) -> str:
    """Return the beginning of PDCTL_TREE for an instance: the same in all its runs, different for every other cluster."""
    import hashlib

    return f"{hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:16]}/{name}/"


def descendants(table: Table, roots: Iterable[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for found in table.values():
        children.setdefault(found.ppid, []).append(found.pid)
    result, left = set(), list(roots)
    while left:
        for child in children.get(left.pop(), ()):
            if child not in result:
                result.add(child)
                left.append(child)
    return result


def has_mark(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"PDCTL_TREE=" + mark.encode() in file.read()
    except OSError:
        return False


def writes_to(pid: int, pipe: str) -> bool:
    """Say whether a process holds the log pipe: renaming and setsid don't change that."""
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for fd in fds:
        try:
            if os.readlink(f"/proc/{pid}/fd/{fd}") == pipe:
                return True
        except OSError:
            continue
    return False


def find_tree(state: State, mark: str, shim_pid: int | None = None, thorough: bool = True) -> Tree:
    """Return {pid: start} of all live processes of an instance, by evidence only; never the supervisor itself.

    `thorough` also reads environments and open files, which finds what a dead supervisor can no longer vouch for.
    """
    table = process_table()
    # After a reboot equal pids, start times and pipe numbers are chance: they name strangers.
    record = state if same_boot(state) else {}
    recorded = {pid: start for pid, start in record.get("tree") or [] if is_same(pid, start, table)}
    sessions = _sessions(state, table)
    roots = set(recorded)
    if shim_pid:
        roots.add(shim_pid)
    own = set(recorded) | descendants(table, roots)
    if thorough:
        pipe = record.get("pipe") or ""
        for pid, found in table.items():
            if pid in own or not found.alive or pid == os.getpid():
                continue
            if found.session in sessions or has_mark(pid, mark) or (pipe and writes_to(pid, pipe)):
                own.add(pid)
        own |= descendants(table, own)
    not_ours = {0, 1, 2, os.getpid(), shim_pid}
    if same_boot(state) and is_same(state.get("shim_pid"), state.get("shim_start"), table):
        not_ours.add(state.get("shim_pid"))
    return {pid: table[pid].start for pid in own - not_ours if pid in table and table[pid].alive}


def _sessions(state: State, table: Table) -> set[int]:
    """Return sessions that the tree opened. One whose leader's pid was taken by somebody else is not ours any more."""
    sessions: set[int] = set()
    if not same_boot(state):
        return sessions
    for leader, start in state.get("sessions") or []:
        found = table.get(leader)
        if found is None or found.start == start:
            sessions.add(leader)
    return sessions


def same_boot(state: State) -> bool:
    return bool(state.get("boot_id")) and state.get("boot_id") == boot_id()


def shim_alive(state: State) -> bool:
    return same_boot(state) and is_same(state.get("shim_pid"), state.get("shim_start"))


def kill_all(
    state: State,
    mark: str,
    shim_pid: int | None = None,
    limit_s: float = KILL_LIMIT_S,
    pump: Callable[[float], None] | None = None,
) -> Tree:
    """SIGKILL the whole tree, again until a look finds nothing (a process may fork while it is being killed)."""
    end = time.monotonic() + limit_s
    left = find_tree(state, mark, shim_pid)
    while left:
        for pid, start in left.items():
            send(pid, start, signal.SIGKILL)
        if pump:
            pump(0.02)
        else:
            time.sleep(0.02)
        left = find_tree(state, mark, shim_pid)
        if time.monotonic() > end:
            break
    return left


# --- shared memory ---------------------------------------------------------------------------------------------------


def shm_names(pids: Iterable[int]) -> set[str]:
    """Return names under /dev/shm that these processes map or hold open."""
    names = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                for line in file:
                    at = line.find(b"/dev/shm/")
                    if at >= 0:
                        names.add(line[at + 9 :].rstrip().decode(errors="replace"))
        except OSError:
            continue
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if target.startswith("/dev/shm/"):
                    names.add(target[9:])
        except OSError:
            continue
    return {name for name in names if not name.endswith(" (deleted)")}


def remove_shm(names: Iterable[str]) -> list[str]:
    """Remove segments that a tree left behind: ours by uid, and mapped by nobody who lives."""
    left = []
    for name in names:
        try:
            if "/" not in name and os.stat(f"/dev/shm/{name}").st_uid == os.geteuid():
                left.append(name)
        except OSError:
            continue
    if not left:
        return []
    used = shm_names(process_table())
    removed = []
    for name in left:
        if name not in used:
            try:
                os.unlink(f"/dev/shm/{name}")
                removed.append(name)
            except OSError:
                continue
    return removed


# --- the log ---------------------------------------------------------------------------------------------------------


def stamp_of(epoch_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(epoch_s)) + f".{int(epoch_s % 1 * 1e6):06d}Z"


def log_files(folder: str) -> list[tuple[int, str]]:
    """Return [(number, path)] of an instance's log files, oldest first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(
        (int(name[:-4]), f"{folder}/{name}") for name in names if name.endswith(".log") and name[:-4].isdigit()
    )


class Log:
    """A rotated log: numbered files, `current` points to the newest. A full disk costs lines, never the instance."""

    def __init__(self, folder: str, max_bytes: int, keep: int) -> None:
        self.folder, self.max_bytes, self.keep = folder, max(4096, max_bytes), max(0, keep)
        self.carry = b""
        self.after_cr = self.torn = False
        self.dropped = 0
        self.file: int | None = None
        self.number = max([number for number, _ in log_files(folder)] or [0])
        self.size = 0
        self._open(self.number or 1)

    def position(self) -> list[int]:
        return [self.number, self.size]

    def _open(self, number: int) -> None:
        try:
            make_dir(self.folder)
            if self.file is not None:
                os.close(self.file)
                self.file = None
            path = f"{self.folder}/{number:08d}.log"
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self.number, self.size, self.torn = number, os.fstat(self.file).st_size, False
            link = f"{self.folder}/current"
            if not os.path.islink(link) or os.readlink(link) != os.path.basename(path):
                fresh = f"{link}.new"
                try:
                    os.unlink(fresh)
                except OSError:
                    pass
                os.symlink(os.path.basename(path), fresh)
                os.replace(fresh, link)
            for old, old_path in log_files(self.folder):
                if old < number - self.keep:
                    os.unlink(old_path)
        except OSError:
            pass

    def feed(self, data: bytes) -> bytes:
        """Take output as it came; returns the complete lines in it."""
        if self.after_cr and data[:1] == b"\n":
            data = data[1:]  # the second half of a line end that the read before cut apart
        self.after_cr = data.endswith(b"\r")
        data = self.carry + data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n")
        if end < 0:
            self.carry = data
            if len(data) > LONGEST_LINE:
                self.carry = b""
                self._lines(data)
                return data
            return b""
        self.carry = data[end + 1 :]
        self._lines(data[:end])
        return data[:end]

    def flush(self) -> None:
        if self.carry:
            self._lines(self.carry)
            self.carry = b""

    def note(self, text: str) -> None:
        """Write a line of the supervisor's own."""
        self.flush()
        self._lines(b"pdctl: " + text.replace("\n", "\\n").encode())

    def _lines(self, text: bytes) -> None:
        """Write lines in blocks; a line that is too long is cut, but never inside a character."""
        stamp = stamp_of(time.time()).encode() + b" "
        longest = min(LONGEST_LINE, self.max_bytes - len(stamp) - 1)
        at, size = 0, len(text)
        while size - at > longest:
            end = text.rfind(b"\n", at, at + longest + 1)
            following = end + 1
            if end < 0:
                end = at + longest
                while text[end] & 0xC0 == 0x80 and end > at + longest - 3:
                    end -= 1
                following = end
            self._blocks(stamp + text[at:end].replace(b"\n", b"\n" + stamp) + b"\n")
            at = following
        self._blocks(stamp + text[at:].replace(b"\n", b"\n" + stamp) + b"\n")

    def _blocks(self, data: bytes) -> None:
        """Write lines so that no file grows past its bound: a stamp before many short lines is more than the lines."""
        at = 0
        while len(data) - at > self.max_bytes:
            end = data.rfind(b"\n", at, at + self.max_bytes) + 1
            self._write(data[at:end])
            at = end
        self._write(data[at:])

    def _write(self, data: bytes) -> None:
        if self.file is None or self.size + len(data) > self.max_bytes:
            self._open(self.number + 1 if self.size else max(1, self.number))
        head = b""
        if self.dropped:
            head = f"{stamp_of(time.time())} pdctl: {self.dropped} bytes of output could not be written\n".encode()
        view = memoryview((b"\n" if self.torn else b"") + head + data)
        length = len(view)
        try:
            if self.file is None:
                raise OSError(errno.EIO, "no log file")
            while view:
                written = os.write(self.file, view)
                self.size += written
                view = view[written:]
            self.dropped, self.torn = 0, False
        except OSError:
            self.torn = self.torn or 0 < len(view) < length
            self.dropped += min(len(view), len(data))


# --- health ----------------------------------------------------------------------------------------------------------


def split_url(url: str) -> tuple[str, int, str]:
    """Return (host, port, path) of an http url; the host of an IPv6 url comes without brackets."""
    rest = url.split("://", 1)[1]
    address, _, path = rest.partition("/")
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port), "/" + path


def http_get(url: str, timeout_s: float, limit: int = 1 << 22) -> tuple[int, bytes]:
    """Return (status, body). Raises OSError. Plain sockets: importing http.client would cost every supervisor 20 ms."""
    host, port, path = split_url(url)
    end = time.monotonic() + timeout_s
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        head = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\nUser-Agent: pdctl\r\n\r\n"
        connection.sendall(head.encode())
        data = b""
        while len(data) < limit:
            connection.settimeout(max(0.01, end - time.monotonic()))
            piece = connection.recv(65536)
            if not piece:
                break
            data += piece
    first, _, rest = data.partition(b"\r\n")
    words = first.split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise OSError("no HTTP answer")
    headers, _, body = rest.partition(b"\r\n\r\n")
    return int(words[1]), (_dechunked(body) if b"chunked" in headers.lower() else body)


def _dechunked(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        try:
            count = int(size.split(b";")[0], 16)
        except ValueError:
            break
        if not count:
            break
        out += rest[:count]
        body = rest[count + 2 :]
    return out


class Health:
    """Asks an instance for its health in a thread of its own, fast until it is ready, then at its interval."""

    def __init__(self, spec: State, wake: int) -> None:
        import threading

        self.url = spec["health"]["url"]
        self.interval_s = float(spec["health"]["interval_s"])
        self.timeout_s = float(spec["health"].get("timeout_s", 5))
        self.results: deque[str | None] = deque()
        self._wake = wake
        self._ready = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        began = time.monotonic()
        pause_s = 0.03
        while not self._stop.wait(pause_s):
            error = self._ask()
            if error is None:
                self._ready = True
            if self._ready:
                self.results.append(error)
                try:
                    os.write(self._wake, b"h")
                except OSError:
                    return
            # While an engine loads for minutes, five looks a second are plenty; in its first seconds a look costs little.
            pause_s = self.interval_s if self._ready else 0.05 if time.monotonic() - began < 15 else 0.2
            if self._ready and error is not None:
                pause_s = min(self.interval_s, 1.0)

    def _ask(self) -> str | None:
        try:
            status, _ = http_get(self.url, self.timeout_s, limit=65536)
        except (OSError, ValueError) as error:
            return f"{self.url} does not answer: {error}"
        return None if status == 200 else f"{self.url} answers {status}"


# --- the supervisor --------------------------------------------------------------------------------------------------


def become_subreaper() -> None:
    """Let orphans of the tree become our children instead of init's (prctl 36, PR_SET_CHILD_SUBREAPER)."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def describe_exit(status: int) -> tuple[str, int | None, str | None]:
    """Return (text, exit code or None, signal name or None) of a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"killed by {name}", None, name
    code = os.WEXITSTATUS(status)
    return f"exit code {code}", code, None


class Supervisor:
    """Runs one instance: starts it, writes its log, asks for its health, restarts it by policy, ends its whole tree."""

    def __init__(self, root: str, name: str, spec: State) -> None:
        self.root, self.name, self.spec = root, name, spec
        self.folder = f"{root}/{name}"
        self.mark = tree_mark(root, name)
        logs = spec["logs"]
        self.log = Log(f"{self.folder}/log", int(logs["max_bytes"]), int(logs["keep"]))
        before = read_json(f"{self.folder}/state.json") or {}
        me = process(os.getpid())
        self.state: State = {
            "schema": STATE_SCHEMA, "instance": name, "state": None, "phase": None, "reason": None, "exit_code": None, "signal": None,
            "pid": None, "pid_start": None, "shim_pid": os.getpid(), "shim_start": me.start if me else 0, "boot_id": boot_id(),
            "started_at": None, "ready_at": None, "changed_at": time.time(), "restarts": 0, "runs": before.get("runs") or [],
            "tree": [], "sessions": [], "pipe": "", "shm": [],
        }  # fmt: skip
        self.wake_read, self.wake_write = os.pipe()
        self.pipe_read = self.pipe_write = -1
        self.front_status: int | None = None
        self.ever_ready = False
        self.stop_asked = False
        self.health: Health | None = None
        self.failures = 0
        self.restart_times: deque[float] = deque()
        self.early_exits: list[str] = []
        self.next_scan = 0.0
        self.scan_every = SCAN_FIRST_S
        self.dirty_since: float | None = None
        self.ready_this_run = False
        self.given_up: str | None = None
        self.phases = [(re.compile(pattern), template) for pattern, template in spec.get("phases") or []]
        self.stuck_after = [(re.compile(pattern), reason) for pattern, reason in spec.get("stuck") or []]
        self.stuck: str | None = None

    # - state -

    def transition(self, to: str, **fields: Any) -> None:
        """Change state: the one place that does, checked against EDGES."""
        now = self.state["state"]
        if to not in EDGES[now]:
            raise AssertionError(f"{self.name}: {now} -> {to}")
        self.state.update(fields, state=to, changed_at=time.time())
        if to != "starting":
            self.state["phase"] = None
        self.save()

    def save(self) -> None:
        self.dirty_since = None
        try:
            write_json(f"{self.folder}/state.json", self.state)
        except OSError:
            self.dirty_since = time.monotonic()  # tried again while the loop turns

    # - start -

    def run(self, tell: Callable[[str | None], None]) -> None:
        """Supervise until the end. `tell` is called once with None (it runs) or with the reason why it does not."""
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.set_blocking(self.wake_write, False)
        os.set_blocking(self.wake_read, False)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._asked_to_stop)
        while True:
            error = self.spawn()
            if error:
                self.fail(error)
                tell(error)
                break
            tell(None)
            tell = _told
            self.serve()
            if not self.after_end():
                break
        self.log.flush()

    def _asked_to_stop(self, *_: object) -> None:
        self.stop_asked = True

    def spawn(self) -> str | None:
        """Start the front process; returns why not, or None."""
        if self.pipe_read < 0:
            self.pipe_read, self.pipe_write = os.pipe()
            os.set_blocking(self.pipe_read, False)
            try:
                fcntl.fcntl(self.pipe_read, 1031, CHUNK)  # F_SETPIPE_SZ
            except OSError:
                pass
            self.state["pipe"] = os.readlink(f"/proc/self/fd/{self.pipe_read}")
        run = (self.state["runs"][-1]["run"] if self.state["runs"] else 0) + 1
        argv = [os.path.expanduser(word) if word.startswith("~/") else word for word in self.spec["argv"]]
        report_read, report_write = os.pipe()
        log_at = self.log.position()
        pid = os.fork()
        if pid == 0:
            self._exec(argv, report_write)
        os.close(report_write)
        with os.fdopen(report_read, "rb") as report:
            problem = report.read()
        if problem:
            os.waitpid(pid, 0)
            return f"cannot run {argv[0]}: {os.strerror(int(problem))}"
        found = process(pid)
        self.front_status = None
        self.failures = 0
        self.next_scan, self.scan_every = time.monotonic() + SCAN_FIRST_S, SCAN_FIRST_S
        now = time.time()
        start = found.start if found else 0
        self.state["runs"] = [
            *self.state["runs"],
            {"run": run, "pid": pid, "started_at": now, "ended_at": None, "exit_code": None, "signal": None, "reason": None, "log": log_at},
        ][-RUNS_KEPT:]  # fmt: skip
        self.log.note(f"run {run} started pid {pid}: {' '.join(argv)[:400]}")
        self.transition(
            "starting", phase="starting process", reason=None, exit_code=None, signal=None, pid=pid, pid_start=start, started_at=now,
            ready_at=None, tree=[[pid, start]], sessions=[[pid, start]],
        )  # fmt: skip
        self.health = Health(self.spec, self.wake_write)
        return None

    def _exec(self, argv: list[str], report: int) -> None:
        """In the child: new session, log pipe as output, the instance's environment, nothing else of ours."""
        try:
            os.setsid()
            os.chdir(self.folder)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(self.pipe_write, 1)
            os.dup2(self.pipe_write, 2)
            for number in (
                signal.SIGHUP,
                signal.SIGINT,
                signal.SIGTERM,
                signal.SIGCHLD,
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):
                signal.signal(number, signal.SIG_DFL)
            environ = dict(os.environ)
            environ.update(read_json(f"{self.folder}/env") or {})
            if self.spec.get("pdctl"):
                environ["PYTHONPATH"] = os.path.join(os.path.dirname(self.root), self.spec["pdctl"])
            environ["PDCTL_TREE"] = f"{self.mark}{os.getpid()}"
            environ["PDCTL_INSTANCE"] = self.name
            os.execvpe(argv[0], argv, environ)
        except OSError as error:
            os.write(report, str(error.errno or errno.EINVAL).encode())
        except BaseException:
            os.write(report, str(errno.EINVAL).encode())
        finally:
            os._exit(127)

    # - while it runs -

    def serve(self) -> None:
        """Turn until the front process is dead, a stop is asked for, or the start took too long."""
        limit = time.monotonic() + float(self.spec["health"]["startup_timeout_s"])
        self.ready_this_run = False
        self.given_up = None
        self.stuck = None
        while self.front_status is None and not self.stop_asked:
            self.pump(0.25)
            self.take_health()
            if not self.ready_this_run and time.monotonic() > limit:
                seconds = self.spec["health"]["startup_timeout_s"]
                phase = self.state["phase"]
                self.given_up = (
                    f"not ready after {seconds:g} s ({phase})" if phase else f"not ready after {seconds:g} s"
                )
                return
            if not self.ready_this_run and self.stuck:
                self.given_up = f"would never be ready: {self.stuck}"
                return

    def pump(self, timeout_s: float) -> None:
        """Wait for output, a signal or a health answer, and take what came; keep state and tree record fresh."""
        try:
            ready, _, _ = select.select([self.pipe_read, self.wake_read], [], [], timeout_s)
        except InterruptedError:
            ready = []
        if self.wake_read in ready:
            try:
                while os.read(self.wake_read, 4096):
                    pass
            except OSError:
                pass
        if self.pipe_read in ready:
            self.read_output()
        self.reap()
        now = time.monotonic()
        if now >= self.next_scan and self.front_status is None:
            self.record_tree()
        if self.dirty_since is not None and now - self.dirty_since >= STATE_EVERY_S:
            self.save()

    def read_output(self) -> None:
        try:
            data = os.read(self.pipe_read, CHUNK)
        except OSError:
            return
        lines = self.log.feed(data)
        if self.phases and lines and self.state["state"] == "starting":
            self.find_phase(lines)
        if self.stuck_after and lines and self.state["state"] == "starting":
            text = lines.decode(errors="replace")
            for pattern, reason in self.stuck_after:
                if pattern.search(text):
                    self.stuck = reason

    def find_phase(self, lines: bytes) -> None:
        for line in reversed(lines.decode(errors="replace").split("\n")[-PHASE_LINES:]):
            for pattern, template in self.phases:
                match = pattern.search(line)
                if match:
                    phase = match.expand(template)
                    if phase != self.state["phase"]:
                        self.state["phase"] = phase
                        self.dirty_since = self.dirty_since or time.monotonic() - STATE_EVERY_S
                    return

    def reap(self) -> None:
        """Wait for every child: the front process, and orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.state["pid"]:
                self.front_status = status

    def record_tree(self) -> None:
        """Note which processes are ours, for the day when this supervisor is killed."""
        self.scan_every = min(SCAN_MAX_S, self.scan_every * 1.6)
        table = process_table()
        own = sorted(pid for pid in descendants(table, [os.getpid()]) if table[pid].alive)
        tree = [[pid, table[pid].start] for pid in own]
        leaders = sorted({table[pid].session for pid in own} & set(own))
        sessions = [[pid, table[pid].start] for pid in leaders]
        shm = sorted(set(self.state["shm"]) | shm_names(own))[:256]
        if (tree, shm) != (self.state["tree"], self.state["shm"]):
            used = {
                found.session for found in table.values()
            }  # a session without members: its number may be given anew
            known = {tuple(one) for one in [*self.state["sessions"], *sessions] if one[0] in used}
            self.state.update(tree=tree, sessions=[list(one) for one in sorted(known)][-256:], shm=shm)
            self.scan_every = max(SCAN_FIRST_S, self.scan_every / 2)
            self.save()
        self.next_scan = time.monotonic() + self.scan_every

    def take_health(self) -> None:
        while self.health and self.health.results:
            error = self.health.results.popleft()
            if error is None:
                self.failures = 0
                if self.state["state"] == "starting":
                    self.ready_this_run = self.ever_ready = True
                    self.early_exits = []
                    self.transition("ready", ready_at=time.time(), reason=None)
                    self.next_scan = 0.0  # workers are there now: have them on record before anything can kill us
                elif self.state["state"] == "unhealthy":
                    self.transition("ready", reason=None)
            else:
                self.failures += 1
                if self.failures >= FAILURES_UNTIL_UNHEALTHY and self.state["state"] == "ready":
                    self.transition("unhealthy", reason=error)

    # - the end -

    def after_end(self) -> bool:
        """End what is left, settle the state; returns whether to start again."""
        if self.health:
            self.health.stop()
        if self.stop_asked:
            self.stop()
            return False
        if self.given_up:
            text, code, name = self.given_up, None, None
            self.end_tree(TERM_GRACE_S)
        else:
            text, code, name = describe_exit(self.front_status or 0)
        self.take_last_output()
        decision = self.decide(text, code)
        self.close_run(text, code, name)
        if decision.startswith("restart"):
            self.transition("restarting", reason=text, exit_code=code, signal=name, pid=None)
        else:
            self.transition("failed", reason=decision, exit_code=code, signal=name)
        self.log.note(f"run {self.state['runs'][-1]['run']} ended: {text}")
        left = self.end_tree(TERM_GRACE_S)
        if self.stop_asked and self.state["state"] != "failed":
            self.stop()
            return False
        if left:
            where = ", ".join(str(pid) for pid in left)
            self.fail(f"{text}; processes {where} of it would not end")
            return False
        if self.state["state"] != "restarting":
            return False
        return self.wait_backoff()

    def take_last_output(self) -> None:
        """Write what the front process said last before its end is told; orphans that go on writing don't hold this up."""
        for _ in range(8):
            if not select.select([self.pipe_read], [], [], 0)[0]:
                break
            self.read_output()
        self.log.flush()

    def decide(self, text: str, code: int | None) -> str:
        """Return `restart`, or the reason why there is no other run."""
        if self.given_up:
            return self.given_up
        if not self.ever_ready:
            return f"{text} before it was ready"
        if not self.ready_this_run:
            self.early_exits.append(text)
            if self.early_exits[-2:] == [text, text]:
                return f"{text} before it was ready, twice in a row: another restart would fail again"
        policy = self.spec["restart"]
        if policy["policy"] == "never":
            return text
        if policy["policy"] == "on-failure" and code == 0:
            return f"{text} by itself; restart.policy on-failure does not restart that"
        now, window = time.monotonic(), float(policy["window_s"])
        while self.restart_times and now - self.restart_times[0] > window:
            self.restart_times.popleft()
        if len(self.restart_times) >= int(policy["max"]):
            return f"{text}; restarted {len(self.restart_times)} times in {window:g} s already (restart.max)"
        self.restart_times.append(now)
        return "restart"

    def wait_backoff(self) -> bool:
        backoff = min(BACKOFF_MAX_S, float(self.spec["restart"]["backoff_s"]) * 2 ** (len(self.restart_times) - 1))
        end = time.monotonic() + backoff
        while time.monotonic() < end and not self.stop_asked:
            self.pump(min(0.2, max(0.01, end - time.monotonic())))
        if self.stop_asked:
            self.stop()
            return False
        self.state["restarts"] += 1
        return True

    def close_run(self, text: str, code: int | None, name: str | None) -> None:
        if self.state["runs"] and self.state["runs"][-1]["ended_at"] is None:
            self.state["runs"][-1].update(ended_at=time.time(), exit_code=code, signal=name, reason=text)

    def end_tree(self, timeout_s: float) -> Tree:
        """SIGTERM, then SIGKILL to every descendant; returns those that would not go."""
        self.record_tree()  # shared memory that was made since the last look is known only to the living
        front = self.state["pid"]
        alone = self.front_status is None  # a living front process ends its own children best
        own = find_tree(self.state, self.mark, os.getpid())
        for pid, its_start in own.items():
            if not alone or pid == front:
                send(pid, its_start, signal.SIGTERM)
        end = time.monotonic() + timeout_s
        warned_rest = not alone
        while own and time.monotonic() < end:
            self.pump(0.02)
            if not warned_rest and self.front_status is not None:
                warned_rest = True
                end = min(end, time.monotonic() + TERM_GRACE_S)
                for pid, its_start in find_tree(self.state, self.mark, os.getpid()).items():
                    send(pid, its_start, signal.SIGTERM)
            own = self._quick_look(own)
        left = kill_all(self.state, self.mark, os.getpid(), pump=self.pump)
        self.pump(0)
        while select.select([self.pipe_read], [], [], 0)[0] and not left:
            self.read_output()
        removed = remove_shm(self.state["shm"])
        if removed:
            self.log.note(f"removed shared memory {', '.join(removed)}")
        self.state.update(tree=sorted([pid, its_start] for pid, its_start in left.items()), shm=[])
        return left

    @staticmethod
    def _quick_look(own: Tree) -> Tree:
        """Return what still lives of `own` and of its descendants; cheap, for waiting."""
        table = process_table()
        pids = {pid for pid, start in own.items() if is_same(pid, start, table)}
        pids |= descendants(table, pids | {os.getpid()})
        return {pid: table[pid].start for pid in pids if table[pid].alive and pid != os.getpid()}

    def stop(self) -> None:
        asked = read_json(f"{self.folder}/stop.json") or {}
        given = asked.get("timeout_s")  # 0 is an order too: SIGKILL at once
        timeout_s = float(given if given is not None else self.spec.get("stop_timeout_s") or 30)
        if self.state["state"] != "stopping":
            self.transition("stopping", reason=None)
        left = self.end_tree(timeout_s)
        if self.front_status is not None:
            text, code, name = describe_exit(self.front_status)
            self.close_run(text, code, name)
            self.state.update(exit_code=code, signal=name)
        if left:
            self.fail(f"processes {', '.join(str(pid) for pid in left)} would not end")
        else:
            self.transition("stopped", pid=None)
            self.log.note("stopped")

    def fail(self, reason: str) -> None:
        self.transition("failed", reason=reason) if self.state["state"] != "failed" else self.save()


def _told(error: str | None) -> None:
    """Stand in for `tell` after the first run: nobody waits any more."""


# --- verbs: start ----------------------------------------------------------------------------------------------------


def take_lock(path: str, patience_s: float = 0.0) -> int | None:
    """Return the locked file, or None if somebody holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    end = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() < end:
                time.sleep(0.02)
                continue
            os.close(fd)
            return None
        return fd


def verb_start(root: str) -> tuple[State, int]:
    order = read_stdin_json()
    make_dir(root)
    if order.get("cluster_info") is not None:
        write_json(f"{root}/cluster.json", order["cluster_info"])
    claimed = []
    answer: State = {"started": [], "running": [], "conflict": [], "failed": {}}
    for one in order["instances"]:
        spec = one["spec"]
        name = spec["instance"]
        try:
            lock = _claim(root, name, spec, one.get("env") or {}, answer)
        except OSError as error:
            answer["failed"][name] = f"{root}/{name}: {error.strerror or error}"
            continue
        if lock is not None:
            claimed.append((name, spec, lock))
    waiting = [(name, fork_supervisor(root, name, spec, lock)) for name, spec, lock in claimed]
    for name, report in waiting:
        with os.fdopen(report, "rb") as file:
            said = file.read().decode(errors="replace")
        if said == "ok":
            answer["started"].append(name)
        else:
            answer["failed"][name] = said or "its supervisor ended without a word"
    return answer, 0


def _claim(root: str, name: str, spec: State, env: dict[str, str], answer: State) -> int | None:
    """Write an instance's files and return its lock, or None if it runs already."""
    folder = f"{root}/{name}"
    make_dir(folder)
    state = read_json(f"{folder}/state.json") or {}
    ending = state.get("state") in ("failed", "stopped", "stopping")
    lock = take_lock(f"{folder}/lock", patience_s=5.0 if ending else 0.0)
    if lock is None:
        same = _runs_with(folder, spec["hash"])
        answer["running" if same else "conflict"].append(name)
        return None
    kill_all(state, tree_mark(root, name))  # what a dead supervisor left: never two copies
    remove_shm(state.get("shm") or [])
    write_json(f"{folder}/spec.json", spec)
    write_json(f"{folder}/env", env)
    try:
        os.unlink(f"{folder}/stop.json")
    except OSError:
        pass
    return lock


def _runs_with(folder: str, digest: str) -> bool:
    """Say whether the holder of an instance's lock has this spec; one that has just begun is about to write it."""
    end = time.monotonic() + 1.0
    while (read_json(f"{folder}/spec.json") or {}).get("hash") != digest:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def fork_supervisor(root: str, name: str, spec: State, lock: int) -> int:
    """Start a supervisor that outlives us; returns the pipe on which it says `ok` or what is wrong."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        os.close(lock)
        return read
    try:
        os.setsid()
        os.chdir("/")
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        keep = {0, 1, 2, write, lock}
        for fd in (int(text) for text in os.listdir("/proc/self/fd")):
            if fd not in keep:
                try:
                    os.close(fd)
                except OSError:
                    pass
        become_subreaper()

        def tell(error: str | None) -> None:
            os.write(write, (error or "ok").encode())
            os.close(write)

        Supervisor(root, name, spec).run(tell)
    except BaseException as error:
        import traceback

        try:
            with open(f"{root}/{name}/shim.err", "a") as file:
                traceback.print_exc(file=file)
            os.write(write, f"{type(error).__name__}: {error}".encode())
        except OSError:
            pass
    finally:
        os._exit(0)


# --- verbs: query and watch ------------------------------------------------------------------------------------------


def query_instance(root: str, name: str, count_tree: bool = True) -> State:
    """Return an instance's state as it is, not as it was last written."""
    folder = f"{root}/{name}"
    spec = read_json(f"{folder}/spec.json") or {}
    state = read_json(f"{folder}/state.json") or {"state": "pending"}
    lives = shim_alive(state)
    if not lives and state.get("state") in LIVE:  # it may have written its end between our two looks
        state = read_json(f"{folder}/state.json") or state
        lives = shim_alive(state)
    state["shim_alive"] = lives
    state["hash"] = spec.get("hash")
    state["spec"] = {
        key: spec.get(key) for key in ("role", "host", "address", "url", "gpus", "ports", "argv", "metrics")
    }
    if state.get("state") in LIVE and not lives:
        left = find_tree(state, tree_mark(root, name)) if same_boot(state) else {}
        rest = f"; {len(left)} processes of it still run" if left else ""
        gone = (
            "the host was restarted"
            if not same_boot(state)
            else f"its supervisor (pid {state.get('shim_pid')}) is gone{rest}"
        )
        state.update(state="failed", phase=None, reason=gone, alive=len(left))
    elif count_tree:
        state["alive"] = len(
            find_tree(state, tree_mark(root, name), state.get("shim_pid") if lives else None, thorough=not lives)
        )
    for key in ("tree", "sessions", "pipe", "shm"):
        state.pop(key, None)
    return state


def query(root: str, load: bool = False) -> State:
    instances = {name: query_instance(root, name) for name in instance_names(root)}
    if load:
        add_load(instances)
    return {
        "now": time.time(),
        "boot_id": boot_id(),
        "cluster": read_json(f"{root}/cluster.json") or {},
        "instances": instances,
    }


def verb_query(root: str, *options: str) -> tuple[State, int]:
    return query(root, load="--load" in options), 0


def add_load(instances: dict[str, State]) -> None:
    """Ask all ready instances for their gauges at once."""
    import threading

    def ask(state: State) -> None:
        metrics = (state.get("spec") or {}).get("metrics")
        if not metrics or state.get("state") not in ("ready", "unhealthy"):
            return
        try:
            status, body = http_get(metrics["url"], 1.0)
        except (OSError, ValueError):
            return
        if status != 200:
            return
        if metrics.get("json"):
            try:
                state["load"] = json.loads(body)
            except ValueError:
                pass
        else:
            state["load"] = parse_gauges(body.decode(errors="replace"), metrics["gauges"])

    threads = [threading.Thread(target=ask, args=(state,), daemon=True) for state in instances.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(1.5)
    for state in instances.values():
        state.setdefault("load", None)
        state["spec"].pop("metrics", None)


def parse_gauges(text: str, gauges: dict[str, str]) -> dict[str, float]:
    """Return our gauges from Prometheus text: sums over labels, the highest of a share. `a|b` names alternatives."""
    names = {metric: ours for ours, metrics in gauges.items() for metric in metrics.split("|")}
    found: dict[str, float] = {}
    for line in text.splitlines():
        metric = line.split("{", 1)[0].split(" ", 1)[0]
        if metric in names:
            try:
                value = float(line.rsplit(" ", 1)[1])
            except (ValueError, IndexError):
                continue
            ours = names[metric]
            found[ours] = max(found.get(ours, 0.0), value) if ours == "kv_usage" else found.get(ours, 0.0) + value
    return found


def stdin_ended() -> bool:
    """Say whether stdin is at its end, without waiting."""
    if not select.select([0], [], [], 0)[0]:
        return False
    try:
        return not os.read(0, 4096)
    except OSError:
        return True


def emit(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def verb_watch(root: str) -> tuple[None, int]:
    """Print the whole truth, then each change. Looks at file times: a fiftieth of a second late at most, nearly free."""
    seen, states, shims = {}, {}, {}
    before = {
        name: _file_mark(root, name) for name in instance_names(root)
    }  # a change during the query is told after it
    first = query(root)
    for name, state in first["instances"].items():
        states[name] = (
            state.get("state"),
            state.get("phase"),
            state.get("reason"),
            state.get("pid"),
            state.get("restarts"),
        )
        seen[name] = before.get(name)
        shims[name] = state
    emit(first)
    next_look = time.monotonic() + 0.25
    while not stdin_ended():
        time.sleep(0.02)
        look = time.monotonic() >= next_look
        if look:
            next_look = time.monotonic() + 0.25
        for name in instance_names(root) if look else list(seen):
            mark = _file_mark(root, name)
            died = look and name in shims and shims[name].get("shim_alive") and not shim_alive(shims[name])
            if mark == seen.get(name) and not died:
                continue
            seen[name] = mark
            state = query_instance(root, name, count_tree=False)
            shims[name] = state
            key = (state.get("state"), state.get("phase"), state.get("reason"), state.get("pid"), state.get("restarts"))
            if key != states.get(name):
                states[name] = key
                emit({"instance": name, **state})
    return None, 0


def _file_mark(root: str, name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(f"{root}/{name}/state.json")
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


# --- verbs: stop -----------------------------------------------------------------------------------------------------


class Stopping:
    """One instance on its way down: through its supervisor where that lives, by ourselves where it does not."""

    def __init__(self, root: str, name: str, timeout_s: float) -> None:
        self.root, self.name = root, name
        self.folder, self.mark = f"{root}/{name}", tree_mark(root, name)
        self.state = read_json(f"{self.folder}/state.json") or {}
        self.began = time.monotonic()
        self.timeout_s = timeout_s
        self.through_shim = shim_alive(self.state)
        self.was_running = self.through_shim
        self.rest: Tree = {}
        self.left: Tree = {}
        self.removed: list[str] = []
        self.kill_at = 0.0
        if self.through_shim:
            try:
                write_json(f"{self.folder}/stop.json", {"timeout_s": timeout_s})
            except OSError:
                pass  # a full disk must not keep anything running: the supervisor then takes its default
            send(self.state["shim_pid"], self.state["shim_start"], signal.SIGTERM)
        else:
            self._take_over()

    def _take_over(self) -> None:
        self.through_shim = False
        self.state = read_json(f"{self.folder}/state.json") or self.state
        self.rest = find_tree(self.state, self.mark) if same_boot(self.state) or not self.state else {}
        self.was_running = self.was_running or bool(self.rest)
        for pid, start in self.rest.items():
            send(pid, start, signal.SIGTERM)
        self.kill_at = time.monotonic() + min(self.timeout_s, TERM_GRACE_S * 2)

    def done(self) -> bool:
        """Go one step further; returns whether the end is reached."""
        if self.through_shim:
            if shim_alive(self.state):
                if time.monotonic() - self.began > self.timeout_s + KILL_LIMIT_S + 5:
                    send(self.state["shim_pid"], self.state["shim_start"], signal.SIGKILL)
                return False
            self._take_over()
        table = process_table()
        self.rest = {pid: start for pid, start in self.rest.items() if is_same(pid, start, table)}
        if self.rest and time.monotonic() < self.kill_at:
            return False
        self.left = kill_all(self.state, self.mark)
        self.removed = remove_shm(self.state.get("shm") or [])
        self._settle()
        return True

    def _settle(self) -> None:
        fresh = read_json(f"{self.folder}/state.json") or self.state
        if not self.left and fresh.get("state") in LIVE:
            fresh.update(state="stopped", phase=None, pid=None, tree=[], shm=[], changed_at=time.time())
            try:
                write_json(f"{self.folder}/state.json", fresh)
            except OSError:
                pass
        elif not self.left and fresh.get("state") == "failed" and self.was_running:
            fresh.update(pid=None, tree=[], shm=[])
            try:
                write_json(f"{self.folder}/state.json", fresh)
            except OSError:
                pass


def verb_stop(root: str) -> tuple[State, int]:
    order = read_stdin_json()
    names = order.get("instances")
    names = instance_names(root) if names is None else [name for name in names if os.path.isdir(f"{root}/{name}")]
    groups = [[name for name in group if name in names] for group in order.get("order") or []]
    rest = [name for name in names if not any(name in group for group in groups)]
    stopped: list[str] = []
    already: list[str] = []
    left: list[State] = []
    removed: list[str] = []
    for group in [*groups, rest]:
        running = [Stopping(root, name, float(order.get("timeout_s", 30))) for name in group]
        waiting = list(running)
        while waiting:
            waiting = [one for one in waiting if not one.done()]
            if waiting:
                time.sleep(0.02)
        for one in running:
            (stopped if one.was_running else already).append(one.name)
            removed += one.removed
            left += [{"instance": one.name, "pid": pid, "command": command_of(pid)} for pid in one.left]
    busy = [] if left else [port for name in names for port in _listened(root, name)]
    proof = {"processes": len(left), "ports_free": not busy, "ports_busy": busy, "shm_removed": removed}
    if order.get("purge") and not left:
        purge(root, names, everything=order.get("instances") is None)
    return {"stopped": stopped, "already": already, "left": left, "proof": proof}, 1 if left else 0


def _listened(root: str, name: str) -> list[int]:
    """Return ports of an instance that are still listened on although its tree is gone."""
    spec = read_json(f"{root}/{name}/spec.json") or {}
    state = read_json(f"{root}/{name}/state.json") or {}
    if not state.get("runs"):
        return []  # it never ran: whoever has the port is not ours to report
    ports = [first + more for first, count in (spec.get("ports") or {}).values() for more in range(count)]
    address = spec.get("address") or "127.0.0.1"
    mine = [port for port in ports if try_bind(address, port)]
    owners = {port: pid for (_, port), pid in port_owners([(address, port) for port in mine]).items()} if mine else {}
    return [port for port in mine if not owners.get(port) or has_mark(owners[port], tree_mark(root, name))]


def purge(root: str, names: list[str], everything: bool) -> None:
    import shutil

    for name in names:
        shutil.rmtree(f"{root}/{name}", ignore_errors=True)
    if everything:
        shutil.rmtree(root, ignore_errors=True)


# --- verbs: logs -----------------------------------------------------------------------------------------------------


class LogReader:
    """Reads one instance's log over rotated files, from a place to the end, and goes on where it stopped."""

    def __init__(self, folder: str, start: list[int] | None = None, stop: list[int] | None = None) -> None:
        self.folder = folder
        self.stop = stop
        self.number, self.offset = start or [0, 0]
        self.file: Any = None
        self.carry = b""

    def lines(self) -> Iterator[bytes]:
        """Yield the complete lines that are there now."""
        if self.file is None and not self._open(self._following()):
            return
        while True:
            yield from self._drain()
            following = self._following()
            if following is None:
                return
            yield from self._drain()  # what was written between our last look and the rotation
            if not self._open(following):
                return

    def _drain(self) -> Iterator[bytes]:
        limit = self.stop[1] if self.stop and self.number == self.stop[0] else None
        while True:
            want = CHUNK if limit is None else max(0, min(CHUNK, limit - self.file.tell()))
            data = self.file.read(want) if want else b""
            if not data:
                return
            *whole, self.carry = (self.carry + data).split(b"\n")
            yield from whole

    def _following(self) -> tuple[int, str] | None:
        first = self.number if self.file is None else self.number + 1
        last = self.stop[0] if self.stop else None
        return next(
            (one for one in log_files(self.folder) if one[0] >= first and (last is None or one[0] <= last)), None
        )

    def _open(self, found: tuple[int, str] | None) -> bool:
        if found is None:
            return False
        number, path = found
        if self.file is not None:
            self.file.close()
        try:
            self.file = open(path, "rb")
        except OSError:  # rotated away under our hands
            self.file = None
            return False
        if number == self.number and self.offset:
            self.file.seek(self.offset)
        self.number, self.offset, self.carry = number, 0, b""
        return True


def tail_start(folder: str, count: int, start: list[int] | None) -> list[int] | None:
    """Return the place where the last `count` lines begin, reading backwards from the end; not before `start`."""
    files = [one for one in log_files(folder) if one[0] >= (start or [0])[0]]
    need = count + 1
    for number, path in reversed(files):
        floor = start[1] if start and number == start[0] else 0
        try:
            opened = open(path, "rb")
        except OSError:  # rotated away since it was listed
            continue
        with opened as file:
            at = os.fstat(file.fileno()).st_size
            if count == 0:
                return [number, at]
            while at > floor:
                size = min(65536, at - floor)
                at -= size
                file.seek(at)
                block = file.read(size)
                found = block.count(b"\n")
                if found >= need:
                    for _ in range(found - need + 1):
                        cut = block.index(b"\n")
                        at, block = at + cut + 1, block[cut + 1 :]
                    return [number, at]
                need -= found
    return start


class LogQuery:
    """What is wanted of the logs."""

    def __init__(self, args: Iterable[str]) -> None:
        self.names: list[str] = []
        self.follow, self.run = False, "all"
        self.tail: int | None = None
        self.since: bytes | None = None
        self.until: bytes | None = None
        self.grep: re.Pattern[bytes] | None = None
        left = deque(args)
        while left:
            word = left.popleft()
            if word == "--follow":
                self.follow = True
            elif word == "--tail":
                self.tail = int(left.popleft())
            elif word == "--run":
                self.run = left.popleft()
            elif word == "--since":
                self.since = stamp_of(float(left.popleft())).encode()
            elif word == "--until":
                self.until = stamp_of(float(left.popleft())).encode()
            elif word == "--grep":
                self.grep = re.compile(left.popleft().encode())
            elif word.startswith("--"):
                raise ValueError(f"unknown option {word}")
            else:
                self.names.append(word)

    @property
    def filters(self) -> bool:
        return bool(self.since or self.until or self.grep)

    def reader(self, root: str, name: str) -> LogReader | None:
        """Return the reader of one instance's log, placed where the wanted run begins; None if there is no such run."""
        folder = f"{root}/{name}/log"
        runs = (read_json(f"{root}/{name}/state.json") or {}).get("runs") or []
        start = stop = None
        if self.run == "current" and runs:
            start = runs[-1].get("log")
        elif self.run == "previous":
            if len(runs) < 2:
                return None
            start, stop = runs[-2].get("log"), runs[-1].get("log")
        if self.tail is not None and not self.filters and not stop:
            start = tail_start(folder, self.tail, start)
        return LogReader(folder, start, stop)

    def wanted(self, line: bytes) -> bool:
        stamp, _, text = line.partition(b" ")
        if self.since and stamp < self.since:
            return False
        if self.until and stamp > self.until:
            return False
        return not self.grep or bool(self.grep.search(text))

    def first_lines(self, reader: LogReader) -> Iterator[bytes]:
        lines = filter(self.wanted, reader.lines())
        if self.tail is not None and (self.filters or reader.stop):
            return iter(deque(lines, maxlen=self.tail))
        return lines


def verb_logs(root: str, *args: str) -> tuple[None, int]:
    wanted = LogQuery(args)
    names = wanted.names or instance_names(root)
    readers = {name: reader for name in names for reader in [wanted.reader(root, name)] if reader is not None}

    def tagged(name: str, lines: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        prefix = name.encode() + b" "
        return ((line.split(b" ", 1)[0], prefix + line + b"\n") for line in lines)

    out = sys.stdout.buffer
    first = [tagged(name, wanted.first_lines(reader)) for name, reader in readers.items()]
    for _, line in heapq.merge(*first, key=lambda one: one[0]):
        out.write(line)
    out.flush()
    while wanted.follow and not stdin_ended():
        fresh = [one for name, reader in readers.items() for one in tagged(name, filter(wanted.wanted, reader.lines()))]
        for _, line in sorted(fresh, key=lambda one: one[0]):
            out.write(line)
        if fresh:
            out.flush()
        time.sleep(0.05)
        if not wanted.names:
            for name in instance_names(root):
                if name not in readers:
                    readers[name] = LogReader(f"{root}/{name}/log")
    return None, 0


# --- verbs: ports, lock, note ----------------------------------------------------------------------------------------


def try_bind(address: str, port: int) -> str | None:
    """Return why a port cannot be bound, or None. SO_REUSEADDR: TIME_WAIT is no obstacle, a listener is one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((address, port))
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def port_owners(ports: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return {(address, port): pid} of listeners on that address or on all, as far as this user may see."""
    wanted: dict[str, tuple[str, int]] = {}
    listeners = _listeners()
    for address, port in ports:
        for inode in listeners.get((_packed(address), port), []) + listeners.get((b"", port), []):
            wanted.setdefault(f"socket:[{inode}]", (address, port))
    owners: dict[tuple[str, int], int] = {}
    if not wanted:
        return owners
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            for fd in os.listdir(f"/proc/{name}/fd"):
                target = os.readlink(f"/proc/{name}/fd/{fd}")
                if target in wanted:
                    owners.setdefault(wanted[target], int(name))
        except OSError:
            continue
    return owners


def _listeners() -> dict[tuple[bytes, int], list[str]]:
    """Return {(address, port): [inode]} of listening sockets; the empty address means all of them."""
    found: dict[tuple[bytes, int], list[str]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = file.readlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == "0A":
                address, _, port = fields[1].rpartition(":")
                found.setdefault((_unmapped(_from_proc(address)), int(port, 16)), []).append(fields[9])
    return found


def _from_proc(text: str) -> bytes:
    """Return an address of /proc/net/tcp{,6}: 32-bit words in the byte order of the machine."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return b"".join(word.to_bytes(4, sys.byteorder) for word in words)


def _unmapped(packed: bytes) -> bytes:
    """Return an IPv4 address without its IPv6 clothes, and nothing for `all addresses`."""
    if packed[:12] == b"\0" * 10 + b"\xff\xff":
        packed = packed[12:]
    return packed if any(packed) else b""


def _packed(address: str) -> bytes:
    try:
        return _unmapped(socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address))
    except OSError:  # a name: what it stands for was decided when it was bound
        try:
            return socket.inet_aton(socket.gethostbyname(address))
        except OSError:
            return b""


def verb_ports() -> tuple[State, int]:
    busy = []
    for address, port in read_stdin_json()["ports"]:
        error = try_bind(address, port)
        if error:
            busy.append({"address": address, "port": port, "error": error})
    owners = port_owners([(one["address"], one["port"]) for one in busy]) if busy else {}
    for one in busy:
        pid = owners.get((one["address"], one["port"]))
        one.update(pid=pid, command=command_of(pid) if pid else None)
    return {"busy": busy}, 0


def verb_lock(root: str) -> tuple[None, int]:
    make_dir(root)
    who = json.loads(sys.stdin.buffer.readline() or b"{}")
    path = f"{root}/.lock"
    lock = take_lock(path)
    if lock is None:
        emit({"held": False, "by": read_json(path) or {}})
        return None, 0
    os.ftruncate(lock, 0)
    os.write(lock, json.dumps({**who, "since": time.strftime("%Y-%m-%d %H:%M:%S")}).encode())
    emit({"held": True})
    # Over a network the holder has to be heard from: a dead line looks like a silent one for hours.
    lease_s = who.get("lease_s")
    while select.select([0], [], [], lease_s)[0]:
        try:
            if not os.read(0, 4096):
                break
        except OSError:
            break
    os.ftruncate(lock, 0)
    return None, 0


def verb_note(root: str) -> tuple[State, int]:
    note = read_stdin_json()
    make_dir(root)
    path = f"{root}/cluster.json"
    write_json(path, {**(read_json(path) or {}), **note})
    return {}, 0


VERBS: dict[str, Any] = {
    "start": verb_start, "query": verb_query, "watch": verb_watch, "stop": verb_stop, "logs": verb_logs, "ports": verb_ports,
    "lock": verb_lock, "note": verb_note,
}  # fmt: skip


def main(argv: list[str]) -> int:
    if argv[:1] == ["--version"]:
        print(f"pdctl shim {VERSION}")
        return 0
    if not argv or argv[0] not in VERBS:
        sys.stderr.write(__doc__ or "")
        return 2
    os.umask(0o077)
    if argv[0] != "ports" and len(argv) > 1:
        argv[1] = os.path.abspath(argv[1])  # over ssh a root starts at the home, which nobody else knows
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        answer, code = VERBS[argv[0]](*argv[1:])
    except Exception as error:
        answer, code = {"error": f"{type(error).__name__}: {error}"}, 1
    if answer is not None:
        emit(answer)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
