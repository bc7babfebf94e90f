"""The topology file as typed, frozen values (contract, section 2).

These models say what a key is and what it may hold. Rules that need more than one key live in `load`; rules that need
vLLM, a connector or a GPU count live in `pdctl.plan`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS_BYTES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_duration_s(value: Any) -> Any:
    """Turn `20m`, `5s`, `1.5h` or a plain number of seconds into seconds."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", value.strip())
        if not match:
            raise ValueError(f"{value!r} is no duration; write a number with s, m or h, such as 20m")
        return float(match[1]) * _UNITS_S[match[2]]
    return value


def parse_size_bytes(value: Any) -> Any:
    """Turn `100MiB`, `2GiB` or a plain number of bytes into bytes."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(|B|KiB|MiB|GiB)", value.strip())
        if not match:
            raise ValueError(f"{value!r} is no size; write a number with KiB, MiB or GiB, such as 100MiB")
        return int(float(match[1]) * _UNITS_BYTES[match[2]])
    return value


Seconds = Annotated[float, BeforeValidator(parse_duration_s), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(parse_size_bytes), Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
Size = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
ArgValue = bool | int | float | str | list[Any] | dict[str, Any] | None
Args = dict[str, ArgValue]
Env = dict[str, Annotated[str, BeforeValidator(lambda v: str(v) if isinstance(v, (int, float)) and not isinstance(v, bool) else v)]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Engine(_Strict):
    """What serves the model."""

    kind: Literal["vllm", "sim"] = "vllm"
    device: Literal["gpu", "cpu"] = "gpu"
    """`cpu`: vLLM's CPU build; no GPU is counted, placed or made visible."""
    python: str | None = None
    activate: str | None = None
    version: str | None = None
    args: Args = {}
    env: Env = {}


class RoleSpec(_Strict):
    """One role's replicas; unset sizes fall back to the top level's."""

    replicas: Count | None = None
    tp: Size | None = None
    dp: Size | None = None
    pp: Size | None = None
    args: Args = {}
    env: Env = {}
    hosts: list[str] = []


class ConnectorSpec(_Strict):
    """The KV connector: a short name or vLLM's class name, and what goes into kv_connector_extra_config."""

    name: str
    extra: dict[str, Any] = {}


class Ssh(_Strict):
    host: str
    user: str | None = None
    port: Port | None = None
    identity_file: str | None = None
    jump: str | None = None


class Host(_Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    address: str | None = None
    """What peers connect to; None only for a single local host, where it means 127.0.0.1."""
    gpus: Count | list[int | str] | None = None
    """A count, ids or UUIDs; None: ask NVML on the host."""
    ssh: Ssh | None = None
    interface: str | None = None
    workdir: str = "~/.pdctl"
    python: str | None = None
    activate: str | None = None
    env: Env = {}


class Placement(_Strict):
    instance: str
    host: str
    gpus: list[int | str] | None = None


class ProxySpec(_Strict):
    kind: Literal["auto", "vllm-router", "builtin", "none"] = "auto"
    host: str | None = None
    bind: str = "127.0.0.1"
    port: Port = 8000
    args: Args = {}
    api_key_env: str | None = None


class Ports(_Strict):
    base: Port = 20000
    size: Size = 2000


class Health(_Strict):
    startup_timeout: Seconds = 1200.0
    interval: Seconds = 5.0
    deep: bool = True


class Restart(_Strict):
    policy: Literal["on-failure", "always", "never"] = "on-failure"
    max: Count = 3
    window: Seconds = 600.0
    backoff: Seconds = 5.0


class Logs(_Strict):
    max_size: Bytes = 100 * 2**20
    keep: Count = 5


class Topology(_Strict):
    """One cluster as the user wrote it, defaults filled in. `layout` is already folded into the roles' `replicas`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
    model: Annotated[str, Field(min_length=1)]
    served_model_name: str | None = None
    layout: Annotated[str, Field(pattern=r"^\d+P\d+D$")] | None = None
    tp: Size = 1
    dp: Size = 1
    pp: Size = 1
    gpus: Count | None = None
    allow_idle_gpus: bool = False
    share_gpus: Size = 1
    engine: Engine = Engine()
    prefill: RoleSpec = RoleSpec()
    decode: RoleSpec = RoleSpec()
    aggregated: RoleSpec = RoleSpec()
    connector: ConnectorSpec | None = None
    """None only when there is neither a producer nor a consumer."""
    hosts: list[Host] = []
    placement: list[Placement] = []
    proxy: ProxySpec = ProxySpec()
    ports: Ports = Ports()
    health: Health = Health()
    restart: Restart = Restart()
    logs: Logs = Logs()
