"""`python -m pdctl.sim`: one simulated engine in the foreground."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

from pdctl.sim import log
from pdctl.sim.options import Options, parse_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.sim.links import Link
    from pdctl.sim.metrics import Metrics
    from pdctl.sim.tree import Tree

_LAST_CONNECTOR_P2P = (0, 23, 99)
_FIRST_PULL = (0, 24, 0)


def main(argv: Sequence[str]) -> int:
    """Run one engine until SIGTERM or SIGINT; returns the exit status."""
    options = parse_options(argv)
    tree = None
    if options.tree or (options.fail and options.fail[1] == "kill-worker"):
        from pdctl.sim.tree import Tree

        tree = Tree()
    try:
        return asyncio.run(_serve(options, tree))
    except KeyboardInterrupt:
        return 0
    finally:
        if tree:
            tree.stop()


async def _serve(options: Options, tree: Tree | None) -> int:
    from pdctl.sim.metrics import Metrics
    from pdctl.sim.startup import StartFailed, start_up

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = Metrics(options.served_name)
    link = None
    try:
        link = _link(options, metrics)
        starting = asyncio.create_task(start_up(options, link, tree))
        if not await _done_before(starting, stop):
            return 0
        starting.result()
        return await _answer(options, metrics, link, tree, stop)
    except StartFailed as error:
        return error.exit_code
    finally:
        if link is not None:
            await link.close()


async def _done_before(task: asyncio.Task[None], stop: asyncio.Event) -> bool:
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not task.done():
        task.cancel()
        return False
    return True


def _link(options: Options, metrics: Metrics) -> Link | None:
    """Return the connector's side of this engine; a name that this vLLM does not have ends the start."""
    from pdctl.sim.startup import StartFailed

    if options.kv_config is None:
        return None
    name = options.kv_config["kv_connector"]
    if name == "NixlConnector" or (name == "NixlPullConnector" and options.version >= _FIRST_PULL):
        from pdctl.sim.nixl import NixlLink

        return NixlLink(options, metrics)
    if name == "P2pNcclConnector" and options.version <= _LAST_CONNECTOR_P2P:
        from pdctl.sim.p2p import P2pNcclLink

        return P2pNcclLink(options, metrics)
    log.error(
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        f"ValueError: Unsupported connector type: {name}",
    )
    log.engine_failed()
    raise StartFailed(1)


async def _answer(options: Options, metrics: Metrics, link: Link | None, tree: Tree | None, stop: asyncio.Event) -> int:
    from aiohttp import web

    from pdctl.sim.api import Api
    from pdctl.sim.engine import Engine

    api = Api(Engine(options, metrics, link))
    runner = web.AppRunner(api.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port).start()
    except OSError as error:
        print(f"OSError: [Errno {error.errno}] {error.strerror}", flush=True)
        return 1
    log.line(
        f"Starting sim server on http://{options.host}:{options.port}", process="APIServer", place="api_server.py:1"
    )
    print("INFO:     Application startup complete.", flush=True)
    dying = asyncio.create_task(_watch(api.dead, tree))
    ending = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({dying, ending}, return_when=asyncio.FIRST_COMPLETED)
    dying.cancel()
    await runner.cleanup()
    return 0 if ending in done else 1


async def _watch(dead: asyncio.Event, tree: Tree | None) -> None:
    """Return when the engine has died: of a request, or of a lost child."""
    while not dead.is_set():
        lost = tree.lost() if tree else None
        if lost:
            log.error(
                f"Worker proc {lost} died unexpectedly, shutting down executor.",
                "EngineCore encountered a fatal error.",
            )
            return
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.1)  # let the answer go out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
