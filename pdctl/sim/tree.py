"""Child processes as vLLM has them: they live on when the front process is killed, and hide as real ones do."""

from __future__ import annotations

import signal
import subprocess
import sys

_SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_DFL); time.sleep(1e6)"
_CORE = (
    "import subprocess, sys, time\n"
    "sleeper = sys.argv[1]\n"
    # a worker in a session of its own, without the environment it was given
    "subprocess.Popen([sys.executable, '-I', '-S', '-c', sleeper, 'VLLM::Worker_TP0'], env={}, start_new_session=True)\n"
    "time.sleep(1e6)\n"
)


class Tree:
    """An engine core, its worker in another session, and a worker beside it."""

    def __init__(self) -> None:
        start = [sys.executable, "-I", "-S", "-c"]
        self.core = subprocess.Popen([*start, _CORE, _SLEEPER, "VLLM::EngineCore"])
        self.worker = subprocess.Popen([*start, _SLEEPER, "VLLM::Worker_TP1"], start_new_session=True)

    def kill_worker(self) -> None:
        """Lose a worker, as the kernel's OOM killer does."""
        self.worker.send_signal(signal.SIGKILL)

    def lost(self) -> str | None:
        """Return the name of a child that has died, if one has."""
        for name, child in (("Worker_TP1", self.worker), ("EngineCore", self.core)):
            if child.poll() is not None:
                return name
        return None

    def stop(self) -> None:
        """End the children that are still there; the engine core's own worker is left to whoever supervises us."""
        for child in (self.core, self.worker):
            if child.poll() is None:
                child.terminate()
                child.wait()
