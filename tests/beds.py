"""Several hosts with real sshd on this machine (tests/testbed), as fixtures. Skipped, with the reason, where no testbed can run."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hosts as testbeds
import pytest

from tests.conftest import ROOT, Pdctl, eventually

HOSTS = {
    # four that can hold a cluster, each a different kind of login
    "h0": "user=root",
    "h1": "user=root,port=2222,noise",
    "h2": "user=root,shell=/usr/bin/fish",
    "h3": "user=root,shell=/usr/bin/zsh",
    "csh": "user=root,shell=/bin/tcsh",
    "inner": "user=root,jump=h0",
    "v6": "user=root,ip=6",
    "narrow": "no-sftp,shell=/bin/sh,sshd=MaxSessions 1",
    "wrong": "hostkey=wrong",
    "unknown": "hostkey=unknown",
    "bare": "no-python",
    "tiny": "disk=256k,user=root",
    "gpu": "user=root,gpus=8",
}


_SEEN = Path(f"/opt/pdctl-checkout-{os.getpid()}")
"""Where hosts see this checkout: it may lie in a folder, such as /tmp, of which every host has its own."""


def on_hosts(path: str | Path) -> str:
    """Return where hosts find a file of this checkout (its virtual environments, above all)."""
    here = Path(path).absolute()
    return str(_SEEN / here.relative_to(ROOT)) if here.is_relative_to(ROOT) else str(here)


@contextmanager
def _shown_checkout() -> Iterator[None]:
    _SEEN.mkdir()
    subprocess.run(["mount", "--bind", ROOT, _SEEN], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", _SEEN], check=True)
        _SEEN.rmdir()


@pytest.fixture(scope="session")
def testbed() -> Iterator[testbeds.Testbed]:
    reason = testbeds.unavailable()
    if reason:
        pytest.skip(f"no testbed: {reason}")
    name = f"pdctl-{os.getpid()}"
    with _shown_checkout():
        with warnings.catch_warnings():  # it starts processes that outlive their handles, as it means to
            warnings.simplefilter("ignore", ResourceWarning)
            bed = testbeds.Testbed.up(
                names=list(HOSTS), name=name, overrides=HOSTS, owner=os.getpid(), share=[str(_SEEN)]
            )
            gc.collect()
        with bed:
            yield bed


@pytest.fixture
def bed(testbed: testbeds.Testbed) -> Iterator[testbeds.Testbed]:
    """The testbed; hosts are as new after the test."""
    yield testbed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        testbed.reset()
        gc.collect()


@pytest.fixture
def ssh_home(testbed: testbeds.Testbed, tmp_path: Path) -> Path:
    """A home directory whose .ssh/config knows the testbed's hosts by name."""
    home = tmp_path / "operator"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    shutil.copy(testbed.ssh_config, home / ".ssh" / "config")
    return home


class Many:
    """A pdctl whose hosts are those of the testbed."""

    def __init__(self, bed: testbeds.Testbed, pdctl: Pdctl) -> None:
        self.bed, self.pdctl = bed, pdctl

    def hosts(self, *names: str, **keys: Any) -> list[dict[str, Any]]:
        """Return the `hosts:` of a topology of simulated engines, each with one GPU on paper."""
        return [
            {
                "name": name,
                "ssh": {"host": name},
                "address": self.bed.address(name),
                "gpus": 1,
                "python": on_hosts(sys.executable),
                **keys,
            }
            for name in names
        ]

    def topology(self, *names: str, layout: str = "2P2D", **keys: Any) -> Path:
        extra: Mapping[str, Any] = {"hosts": self.hosts(*names), "layout": layout, **keys}
        return self.pdctl.topology(**extra)

    def processes(self, *names: str) -> dict[str, list[str]]:
        """Return what runs on hosts beside sshd, where anything does."""
        found = {name: [str(one) for one in self.bed.processes(name)] for name in names or self.bed.hosts}
        return {name: rows for name, rows in found.items() if rows}

    def nothing_left(self, *names: str) -> None:
        """Wait until nothing runs on any host: the last shim takes a moment to go."""
        eventually(lambda: not self.processes(*names), 10, "nothing runs on the hosts")


@pytest.fixture
def many(bed: testbeds.Testbed, ssh_home: Path, pdctl: Pdctl) -> Many:
    pdctl.env["HOME"] = str(ssh_home)
    return Many(bed, pdctl)
