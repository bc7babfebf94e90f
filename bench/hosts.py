"""`pdctl status` on 1 and 16 hosts, and parallel-ssh running `true`, and the same question, on the same 16.

    python bench/hosts.py [--runs 5]

Needs a testbed (`make testbed`, as root), and a checkout that hosts see: not below /tmp or /home. Median of the runs, in alternating rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "testbed"))

import hosts as testbeds  # noqa: E402

MANY = 16
AIM = 1.5
PSSH = """
import sys
from pssh.clients import ParallelSSHClient
addresses, key, command = sys.argv[1].split(","), sys.argv[2], sys.argv[3]
client = ParallelSSHClient(addresses, user="root", pkey=key, pool_size=32)
assert [output.exit_code for output in client.run_command(command) if client.join() or True] == [0] * len(addresses)
"""

QUERY = f"python3 -I -S .pdctl/shim-*.py query .pdctl/bench{MANY}@$(hostname) --load"
"""The question that `status` puts to every host: the hosts of the testbed share this machine's cores."""


def topology(folder: Path, bed: testbeds.Testbed, count: int) -> Path:
    names = bed.hosts[:count]
    lines = [
        f"name: bench{count}",
        "model: sim/tiny",
        "layout: 0P0D",
        f"aggregated: {{replicas: {count}}}",
        "engine: {kind: sim}",
    ]
    lines += [f"ports: {{base: {20000 + 100 * count}}}", "proxy: {kind: none}", "hosts:"]
    lines += [
        f"- {{name: {one}, ssh: {{host: {one}}}, address: {bed.address(one)}, gpus: 1, python: {sys.executable}}}"
        for one in names
    ]
    path = folder / f"bench{count}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def timed(argv: list[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    names = [f"n{index}" for index in range(MANY)]
    with (
        tempfile.TemporaryDirectory() as temporary,
        testbeds.Testbed.up(
            names=names, name="bench", overrides=dict.fromkeys(names, "user=root"), owner=os.getpid()
        ) as bed,
    ):
        folder = Path(temporary)
        (folder / ".ssh").mkdir()
        (folder / ".ssh" / "config").write_text(bed.ssh_config.read_text())
        env = {**os.environ, "HOME": str(folder), "PDCTL_HOME": str(folder / "pdctl")}
        pdctl = [sys.executable, "-m", "pdctl"]
        for count in (1, MANY):
            subprocess.run(
                [*pdctl, "up", str(topology(folder, bed, count)), "--no-verify"],
                env=env,
                check=True,
                stdout=subprocess.DEVNULL,
            )
        addresses = ",".join(bed.address(one) for one in bed.hosts)
        commands = {
            "pdctl status, 1 host": [*pdctl, "status", "-c", "bench1", "--json"],
            f"pdctl status, {MANY} hosts": [*pdctl, "status", "-c", f"bench{MANY}", "--json"],
            f"parallel-ssh true, {MANY} hosts": [sys.executable, "-c", PSSH, addresses, str(bed.key), "true"],
            f"parallel-ssh query, {MANY} hosts": [sys.executable, "-c", PSSH, addresses, str(bed.key), QUERY],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(runs):
            for name, argv in commands.items():
                times[name].append(timed(argv, env))
        for count in (1, MANY):
            subprocess.run([*pdctl, "down", "-c", f"bench{count}"], env=env, check=True, stdout=subprocess.DEVNULL)
    one, many, trivial, same = (statistics.median(values) for values in times.values())
    for name, values in times.items():
        print(f"{name:32} {statistics.median(values) * 1000:7.0f} ms")
    print(
        f"{MANY} hosts / 1 host: {many / one:.2f} x (aim {AIM} x); pdctl / parallel-ssh: {many / trivial:.2f} x of `true`, {many / same:.2f} x of the same question"
    )


if __name__ == "__main__":
    main()
