"""Nixl, simulated: the side channel is real, the KV of a position is eight bytes (vLLM 0.33.0, v1/nixl/*)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import traceback
import uuid
from array import array
from typing import TYPE_CHECKING, Any

import msgpack
import zmq
import zmq.asyncio

from pdctl.sim import log
from pdctl.sim.links import Loaded, LoadFailed, request_blocks
from pdctl.sim.tokens import damage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.sim.metrics import Metrics
    from pdctl.sim.options import Options

_HANDSHAKE_S = 5.0
_LEASE_S = 30.0
_PARAMS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


class NixlLink:
    """Producer side: keeps KV until a peer reads it or its lease ends. Consumer side: reads it."""

    blocks_engine = False

    def __init__(self, options: Options, metrics: Metrics) -> None:
        self._options, self._metrics = options, metrics
        self._host = os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost")
        self._port = int(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600"))
        self._engine_id = (options.kv_config or {}).get("engine_id") or str(uuid.uuid4())
        self._policy = (options.kv_config or {}).get("kv_load_failure_policy", "fail")
        self._lease_s = float(options.extra.get("kv_lease_duration", _LEASE_S))
        same = f"{options.version}|{options.model}|{options.vocabulary}|{options.seed}"
        self._compat = hashlib.sha256(same.encode()).hexdigest()
        self._drop = options.drop_first
        self._held: dict[str, tuple[array[int], float]] = {}
        self._context = zmq.asyncio.Context()
        self._tasks: list[asyncio.Task[None]] = []
        metrics.count("nixl_num_failed_transfers", 0)  # vLLM exports it from the start

    async def start(self) -> None:
        log.line(f"Initializing NIXL worker {self._engine_id} (simulated)", place="worker.py:1")
        sockets = []
        for rank in range(self._options.dp):
            address = f"tcp://{self._host}:{self._port + rank}"
            socket = self._context.socket(zmq.ROUTER)
            socket.linger = 0
            try:
                socket.bind(address)
            except zmq.ZMQError as error:
                # vLLM binds in a thread and waits for it: the start hangs (v1/nixl/scheduler.py:271).
                print("Exception in thread nixl_handshake_listener:", flush=True)
                traceback.print_exc()
                print(f"zmq.error.ZMQError: {error.strerror} (addr='{address}')", flush=True)
                await asyncio.Event().wait()
            sockets.append(socket)
        self._tasks = [asyncio.create_task(self._serve(socket)) for socket in sockets]
        self._tasks.append(asyncio.create_task(self._expire()))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._context.destroy(linger=0)

    def check(self, request_id: str) -> None:
        """No request kills a Nixl engine by its id."""

    async def hand_over(self, request_id: str, kv: array[int], params: dict[str, Any] | None) -> dict[str, Any] | None:
        if not params or not params.get("do_remote_decode"):
            return None
        self._drop -= 1
        if not self._options.drop_kv and self._drop < 0:
            self._held[request_id] = (kv, time.monotonic() + self._lease_s)
        return {
            "do_remote_prefill": True, "do_remote_decode": False,
            "remote_block_ids": [list(range(1, request_blocks(len(kv)) + 1))],
            "remote_engine_id": self._engine_id, "remote_request_id": request_id,
            "remote_host": self._host, "remote_port": self._port, "tp_size": self._options.tp, "remote_num_tokens": len(kv),
        }  # fmt: skip

    async def load(self, request_id: str, prompt: Sequence[int], params: dict[str, Any] | None) -> Loaded | None:
        if not params or not params.get("do_remote_prefill"):
            return None
        if not all(params.get(key) for key in _PARAMS):
            log.line(
                f"Got invalid KVTransferParams: {params}. This request will not utilize KVTransfer",
                level="WARNING",
                place="scheduler.py:1",
            )
            await asyncio.Event().wait()  # the scheduler has parked it: it never finishes
        began = time.perf_counter()
        try:
            kv = await self._read(params)
        except LoadFailed as error:
            self._metrics.count("nixl_num_failed_transfers")
            log.line(f"NIXL transfer failure: handshake_failed {error}", level="ERROR", place="worker.py:1")
            if self._policy == "recompute":
                log.line(
                    f"Recovered from KV load failure: 1 request(s) rescheduled ({len(prompt)} tokens affected).",
                    level="WARNING",
                    place="scheduler.py:1",
                )
                return None
            log.line(
                "Failing 1 request(s) due to KV load failure (failure_policy=fail)",
                level="ERROR",
                place="scheduler.py:1",
            )
            raise
        self._metrics.observe("nixl_xfer_time_seconds", time.perf_counter() - began)
        self._metrics.observe("nixl_bytes_transferred", request_blocks(len(kv)) * 16 * self._options.kv_bytes_per_token)
        return Loaded(damage(kv) if self._options.damage_kv else kv, len(prompt))

    async def _read(self, params: dict[str, Any]) -> array[int]:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        address = f"tcp://{params['remote_host']}:{params['remote_port']}"
        try:
            socket.connect(address)
            await socket.send(
                msgpack.packb(
                    {"get": params["remote_request_id"], "from": params["remote_engine_id"], "compat": self._compat}
                )
            )
            answer = msgpack.unpackb(await asyncio.wait_for(socket.recv(), _HANDSHAKE_S))
        except (asyncio.TimeoutError, zmq.ZMQError) as error:
            raise LoadFailed(f"{address} does not answer: {error or 'timed out'}") from None
        finally:
            socket.close()
        if answer["compat"] != self._compat:
            raise LoadFailed(f"NIXL compatibility hash mismatch. Local: {self._compat}, Remote: {answer['compat']}")
        if answer["engine_id"] != params["remote_engine_id"]:
            raise LoadFailed(
                f"Remote NIXL agent engine ID mismatch. Expected {params['remote_engine_id']}, received {answer['engine_id']}"
            )
        if answer["kv"] is None:
            raise LoadFailed(f"request {params['remote_request_id']} holds no blocks on the remote")
        return array("Q", answer["kv"])

    async def _serve(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            identity, data = await socket.recv_multipart()
            asked = msgpack.unpackb(data)
            # The hand-shake comes before the read: a peer that was sent to the wrong engine takes nothing away.
            meant = (asked["from"], asked["compat"]) == (self._engine_id, self._compat)
            held = self._held.pop(asked["get"], None) if meant else None
            answer = {"engine_id": self._engine_id, "compat": self._compat, "kv": held[0].tobytes() if held else None}
            await socket.send_multipart([identity, msgpack.packb(answer)])

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            for request_id in [key for key, (_, until) in self._held.items() if until < now]:
                del self._held[request_id]
                self._metrics.count("nixl_num_kv_expired_reqs")
                log.line(
                    f"Releasing expired KV blocks for request {request_id} which were retrieved by 0 remote worker(s) before lease expired.",
                    level="WARNING",
                )
