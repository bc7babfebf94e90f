"""P2pNccl, simulated: real ZMQ sockets, vLLM 0.22.1's ways of failing (v1/p2p/p2p_nccl_engine.py, p2p_nccl_connector.py)."""

from __future__ import annotations

import asyncio
import os
import re
from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgpack
import zmq
import zmq.asyncio

from pdctl.sim import log
from pdctl.sim.links import EngineDead, Loaded
from pdctl.sim.startup import StartFailed
from pdctl.sim.tokens import damage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdctl.sim.metrics import Metrics
    from pdctl.sim.options import Options

_PING_S = 3.0
_TO_DECODE = re.compile(r"___decode_addr_(.*):(\d+)")
_TO_PREFILL = re.compile(r"___prefill_addr_(.*):(\d+)___")


class P2pNcclLink:
    """Producer side: pushes each rank's part of the KV. Consumer side: waits for it, without a time limit, engine and all."""

    blocks_engine = True

    def __init__(self, options: Options, metrics: Metrics) -> None:
        self._options, self._metrics = options, metrics
        config = options.kv_config or {}
        self._ip = os.environ.get("VLLM_HOST_IP") or "127.0.0.1"
        self._port = int(config.get("kv_port", 14579))
        self._produces = config.get("kv_role") != "kv_consumer"
        self._context = zmq.asyncio.Context()
        self._parts: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
        self._arrived = asyncio.Condition()
        self._peers: dict[str, zmq.asyncio.Socket] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        extra = self._options.extra
        if "http_port" not in extra:
            self._worker_failed(
                "ValueError: kv_connector_extra_config.http_port is required. Example: --kv-transfer-config='{...}'"
            )
        proxy_ip, proxy_port = extra.get("proxy_ip", ""), extra.get("proxy_port", "")
        if proxy_ip and not isinstance(proxy_port, str):
            self._worker_failed('TypeError: can only concatenate str (not "int") to str')
        for rank in range(self._options.tp * self._options.pp):
            address = f"tcp://{self._ip}:{self._port + rank}"
            socket = self._context.socket(zmq.ROUTER)
            socket.linger = 0
            try:
                socket.bind(address)
            except zmq.ZMQError as error:
                self._worker_failed(f"zmq.error.ZMQError: {error.strerror} (addr='{address}')")
            self._tasks.append(asyncio.create_task(self._listen(socket, rank)))
        zmq_address = f"{self._ip}:{self._port}"
        http_address = f"{self._ip}:{extra['http_port']}"
        log.line(
            f"💯P2pNcclEngine init, rank:0, http_address:{http_address}, zmq_address:{zmq_address}, proxy_address:{proxy_ip}:{proxy_port}",
            place="p2p_nccl_engine.py:1",
        )
        if proxy_ip:
            message = {"type": "P" if self._produces else "D", "http_address": http_address, "zmq_address": zmq_address}
            self._tasks.append(
                asyncio.create_task(self._ping(f"tcp://{proxy_ip}:{proxy_port}", zmq_address, msgpack.packb(message)))
            )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._context.destroy(linger=0)

    def check(self, request_id: str) -> None:
        pattern = _TO_DECODE if self._produces else _TO_PREFILL
        if not pattern.search(request_id):
            text = f"ValueError: Request id {request_id} does not contain hostname and port"
            log.error("EngineCore encountered a fatal error.", "Traceback (most recent call last):", text)
            raise EngineDead(text)

    async def hand_over(self, request_id: str, kv: array[int], params: dict[str, Any] | None) -> dict[str, Any] | None:
        match = _TO_DECODE.search(request_id)
        if match is None or not self._produces or self._options.drop_kv:
            return None
        ranks = self._options.tp * self._options.pp
        for rank in range(ranks):
            address = f"{match[1]}:{int(match[2]) + rank}"
            part = kv.tobytes() if rank == 0 else b""
            peer = self._peer(address)
            await peer.send(msgpack.packb({"id": request_id, "rank": rank, "kv": part}))
            await peer.recv()  # no time limit: a dead decode instance hangs its prefill instances
        return None

    async def load(self, request_id: str, prompt: Sequence[int], params: dict[str, Any] | None) -> Loaded | None:
        if self._produces or len(prompt) < 2:
            return None
        ranks = self._options.tp * self._options.pp
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self._parts[request_id]) == ranks)
        kv = array("Q", self._parts.pop(request_id)[0])[: len(prompt) - 1]
        return Loaded(damage(kv) if self._options.damage_kv else kv, len(prompt) - 1)

    def _peer(self, address: str) -> zmq.asyncio.Socket:
        if address not in self._peers:
            socket = self._context.socket(zmq.DEALER)
            socket.linger = 0
            socket.connect(f"tcp://{address}")
            self._peers[address] = socket
            log.line(
                f"🤝ncclCommInitRank Success, {self._ip}:{self._port}👉{address}, MyRank:0 (simulated)",
                place="p2p_nccl_engine.py:1",
            )
        return self._peers[address]

    async def _listen(self, socket: zmq.asyncio.Socket, rank: int) -> None:
        while True:
            identity, data = await socket.recv_multipart()
            message = msgpack.unpackb(data)
            async with self._arrived:
                self._parts[message["id"]][rank] = message["kv"]
                self._arrived.notify_all()
            await socket.send_multipart([identity, b"ok"])

    async def _ping(self, proxy: str, zmq_address: str, message: bytes) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.identity = zmq_address.encode()
        socket.connect(proxy)
        while True:
            await socket.send(message)
            await asyncio.sleep(_PING_S)

    @staticmethod
    def _worker_failed(text: str) -> None:
        log.error(
            "WorkerProc failed to start.",
            "Traceback (most recent call last):",
            '  File "vllm/distributed/kv_transfer/kv_connector/v1/p2p/p2p_nccl_engine.py", line 1, in __init__',
            text,
            process="Worker_TP0",
        )
        log.engine_failed()
        raise StartFailed(1)
