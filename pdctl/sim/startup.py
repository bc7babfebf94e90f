"""The start of a simulated engine: vLLM's milestones in its log, and the failures that can be asked for."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from pdctl.sim import log
from pdctl.vllm.version import format_version

if TYPE_CHECKING:
    from pdctl.sim.links import Link
    from pdctl.sim.options import Options
    from pdctl.sim.tree import Tree


class StartFailed(Exception):
    """The start failed in a way that ends the process."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


async def start_up(options: Options, link: Link | None, tree: Tree | None) -> None:
    """Go through the phases of a start. Raises StartFailed; returns when the server may be started."""
    pause = options.startup_s / 8
    log.line(
        f"simulated engine of pdctl, following the rules of vLLM {format_version(options.version)}", process="APIServer"
    )
    log.line(f"non-default args: {options.given}", process="APIServer", place="utils.py:1")
    await _maybe_fail(options, "config", tree)
    log.line("Initializing a V1 LLM engine (simulated) with config: ...", place="core.py:1")
    await asyncio.sleep(pause)
    log.line(f"Starting to load model {options.model}...", place="gpu_model_runner.py:1")
    for shard in range(1, 5):
        await asyncio.sleep(pause / 2)
        print(f"Loading safetensors checkpoint shards: {shard * 25:3d}% Completed | {shard}/4", flush=True)
    await _maybe_fail(options, "load", tree)
    log.line("Model loading took 0.0 GiB memory and 0.1 seconds", place="gpu_model_runner.py:1")
    await asyncio.sleep(pause)
    log.line("torch.compile took 0.0 s in total (nothing is compiled)", place="monitor.py:1")
    await asyncio.sleep(pause)
    await _maybe_fail(options, "profile", tree)
    log.line("GPU KV cache size: 1,048,576 tokens (simulated)", place="kv_cache_utils.py:1")
    await asyncio.sleep(pause)
    await _maybe_fail(options, "connector", tree)
    if link is not None:
        await link.start()
    log.line("Capturing CUDA graphs (decode, FULL): 100%", place="gpu_model_runner.py:1")
    await asyncio.sleep(pause)
    log.line("init engine (profile, create kv cache, warmup model) took 0.1 seconds", place="core.py:1")
    await asyncio.sleep(pause)
    await _maybe_fail(options, "serve", tree)


async def _maybe_fail(options: Options, phase: str, tree: Tree | None) -> None:
    if options.fail is None or options.fail[0] != phase:
        return
    how = options.fail[1]
    if how == "hang":
        await asyncio.Event().wait()
    if how == "exit0":
        raise StartFailed(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "kill-worker":
        await _lose_worker(tree)
    if how == "oom":
        log.error(
            "Traceback (most recent call last):", '  File "vllm/v1/worker/gpu_worker.py", line 1, in load_model',
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.02 GiB is free.",
        )  # fmt: skip
    else:
        log.error(
            "Traceback (most recent call last):",
            f'  File "pdctl/sim/startup.py", line 1, in {phase}',
            f"ValueError: --sim-fail asked for a failure in phase {phase}",
        )
    log.engine_failed()
    raise StartFailed(1)


async def _lose_worker(tree: Tree | None) -> None:
    """Die as vLLM does when a worker is killed while it loads."""
    if tree is not None:
        tree.kill_worker()
        while tree.lost() is None:
            await asyncio.sleep(0.01)
    log.error("Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.")
    log.engine_failed()
    raise StartFailed(1)
