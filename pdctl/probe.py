"""Looks at a host before anything starts there: standard library only, Python 3.9+, handed to the host's own python3 as text.

    python3 -I -S -c SOURCE facts '{"workdir": ..., "addresses": [...], ...}'     one JSON object on stdout
    python3 -I -S -c SOURCE listen '{"at": [[ADDRESS, PORT], ...]}'               answers "pdctl" there until stdin ends
    python3 -I -S -c SOURCE dial '{"to": [[ADDRESS, PORT], ...], "timeout_s": 3}' what each of them answers

It changes nothing on the host.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import resource
import select
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

TOKEN = b"pdctl\n"
OTHER = "something else listens there"
_SMI_FIELDS = ["index", "uuid", "name", "memory.total", "memory.used", "driver_version"]


def facts(ask: dict[str, Any]) -> dict[str, Any]:
    """Return what there is to know; a part that cannot be found out is None."""
    return {
        "now": time.time(),
        "hostname": socket.gethostname(),
        "hostname_addresses": addresses_of(socket.gethostname()),
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "addresses": {address: bindable(address) for address in ask["addresses"]},
        "interfaces": {name: read(f"/sys/class/net/{name}/operstate") for name in ask["interfaces"]},
        "known_interfaces": sorted(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else [],
        "ephemeral": port_range(),
        "proxies": {
            name: os.environ[name]
            for name in (
                "http_proxy",
                "HTTP_PROXY",
                "https_proxy",
                "HTTPS_PROXY",
                "all_proxy",
                "ALL_PROXY",
                "no_proxy",
                "NO_PROXY",
            )
            if os.environ.get(name)
        },
        "nofile": limit(resource.RLIMIT_NOFILE),
        "memlock": limit(resource.RLIMIT_MEMLOCK),
        "shm_bytes": space("/dev/shm"),
        "disk": disk(ask["workdir"]),
        "rdma": rdma(),
        "gpus": gpus(),
        "gpu_processes": gpu_processes(),
        "model": model(ask["model"]) if ask.get("model") else None,
    }


def addresses_of(name: str) -> list[str]:
    try:
        return sorted({str(row[4][0]) for row in socket.getaddrinfo(name, None)})
    except OSError:
        return []


def bindable(address: str) -> str | None:
    """Return None if an address is this host's, else what the kernel says."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(where)
    except OSError as error:
        return error.strerror or str(error)
    return None


def read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


def port_range() -> list[int] | None:
    text = read("/proc/sys/net/ipv4/ip_local_port_range")
    return [int(part) for part in text.split()] if text else None


def limit(which: int) -> int | None:
    """Return the hard limit; None if there is none."""
    hard = resource.getrlimit(which)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def space(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def disk(workdir: str) -> dict[str, Any]:
    """Return where the workdir would be made, its free bytes, and whether it can be written."""
    path = os.path.abspath(os.path.expanduser(workdir))
    there = path
    while not os.path.exists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    return {
        "path": path,
        "free": space(there),
        "writable": os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK),
    }


def rdma() -> list[dict[str, Any]]:
    found = []
    for path in sorted(glob.glob("/sys/class/infiniband/*/ports/*")):
        parts = path.split("/")
        found.append(
            {"device": parts[4], "port": parts[6], "state": read(f"{path}/state"), "rate": read(f"{path}/rate")}
        )
    return found


def smi(query: str, fields: list[str]) -> list[list[str]] | None:
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(fields)] if done.returncode == 0 else None


def gpus() -> list[dict[str, Any]] | None:
    rows = smi("gpu", _SMI_FIELDS)
    return None if rows is None else [
        {"index": row[0], "uuid": row[1], "name": row[2], "total_mib": number(row[3]), "used_mib": number(row[4]), "driver": row[5]} for row in rows
    ]  # fmt: skip


def gpu_processes() -> list[dict[str, Any]]:
    rows = smi("compute-apps", ["gpu_uuid", "pid", "used_memory"]) or []
    return [
        {"uuid": row[0], "pid": number(row[1]), "used_mib": number(row[2]), "command": command(row[1])} for row in rows
    ]


def number(text: str) -> int | None:
    try:
        return int(float(text))
    except ValueError:
        return None


def command(pid: str) -> str | None:
    text = read(f"/proc/{pid}/cmdline")
    return text.replace("\0", " ").strip()[:120] if text else None


def model(path: str) -> dict[str, Any]:
    folder = os.path.expanduser(path)
    try:
        with open(os.path.join(folder, "config.json"), "rb") as file:
            config = hashlib.sha256(file.read()).hexdigest()
    except OSError:
        config = None
    return {"exists": os.path.isdir(folder), "config": config}


def listen(ask: dict[str, Any]) -> None:
    """Serve the token at every address until stdin ends; says first what could not be bound."""
    servers: list[Any] = []
    failed = {}
    for address, port in ask["at"]:
        try:
            family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            server = socket.socket(family, kind)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(where)
            server.listen(128)
            servers.append(server)
        except OSError as error:
            failed[f"{address} {port}"] = error.strerror or str(error)
    print(json.dumps({"failed": failed}), flush=True)
    while True:
        ready: list[Any] = select.select([*servers, sys.stdin], [], [])[0]
        for one in ready:
            if one is sys.stdin:
                if not os.read(0, 4096):
                    return
                continue
            peer = one.accept()[0]
            with peer:
                peer.sendall(TOKEN)


def dial(ask: dict[str, Any]) -> dict[str, Any]:
    """Return for each address None if the token came, else what happened instead. All are tried at once."""
    connecting: dict[Any, str] = {}
    connected: dict[Any, str] = {}
    found: dict[str, str | None] = {}
    for address, port in ask["to"]:
        name = f"{address} {port}"
        try:
            family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            peer = socket.socket(family, kind)
            peer.setblocking(False)
            code = peer.connect_ex(where)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            connecting[peer] = name
        except OSError as error:
            found[name] = error.strerror or str(error)
    end = time.monotonic() + ask["timeout_s"]
    while (connecting or connected) and time.monotonic() < end:
        readable, writable, _ = select.select(list(connected), list(connecting), [], max(0.0, end - time.monotonic()))
        for peer in writable:
            name = connecting.pop(peer)
            code = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                found[name] = os.strerror(code)
                peer.close()
            else:
                connected[peer] = name
        for peer in readable:
            name = connected.pop(peer)
            try:
                found[name] = None if peer.recv(len(TOKEN)) == TOKEN else OTHER
            except OSError as error:
                found[name] = error.strerror or str(error)
            peer.close()
    for peer, name in [*connecting.items(), *connected.items()]:
        found[name] = OTHER if peer in connected else "no answer"
        peer.close()
    return {"found": found}


def main(argv: list[str]) -> int:
    ask = json.loads(argv[1])
    if argv[0] == "listen":
        listen(ask)
    else:
        print("pdctl-probe " + json.dumps(facts(ask) if argv[0] == "facts" else dial(ask)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
