"""The topology file as typed, frozen values (contract, section 2).

These models say what a key is and what it may hold. Rules that need more than one key live in `rules`; rules that need
vLLM, a connector or a GPU count live in `pdctl.plan`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS_BYTES = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smh])")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(|B|KiB|MiB|GiB)")
MOST_REPLICAS = 4096
"""Far more than any cluster has; a slip of the keyboard must not make pdctl plan a million processes."""
YEAR_S = 366 * 86400.0


def parse_duration_s(value: Any) -> Any:
    """Turn `20m`, `5s`, `1.5h` or a plain number of seconds into seconds. Raises ValueError."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if not match:
            raise ValueError("is no duration; write a number with s, m or h, such as 20m")
        return float(match[1]) * _UNITS_S[match[2]]
    return value


def parse_size_bytes(value: Any) -> Any:
    """Turn `100MiB`, `2GiB` or a plain number of bytes into bytes. Raises ValueError."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if not match:
            raise ValueError("is no size; write a number with KiB, MiB or GiB, such as 100MiB")
        # The bound keeps a long row of digits from overflowing; the field says what is too big.
        return int(min(float(match[1]), 2.0**60) * _UNITS_BYTES[match[2]])
    return value


def _env_text(value: Any) -> Any:
    """Write numbers as text: every environment variable is."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration_s),
    Field(gt=0, le=YEAR_S),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*[smh]\s*$"}, {"type": "number"}],
            "examples": ["5s", "20m", "1h"],
        }
    ),
]
Bytes = Annotated[
    int,
    BeforeValidator(parse_size_bytes),
    Field(gt=0, le=2**50),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(B|KiB|MiB|GiB)?\s*$"},
                {"type": "integer", "minimum": 1},
            ],
            "examples": ["100MiB", "1GiB"],
        }
    ),
]
Port = Annotated[int, Field(ge=1, le=65535)]
Size = Annotated[int, Field(ge=1, le=4096)]
Count = Annotated[int, Field(ge=0, le=MOST_REPLICAS)]
Text = Annotated[str, Field(min_length=1)]
GpuId = int | str
ArgValue = bool | int | float | str | list[Any] | dict[str, Any] | None
Args = dict[str, ArgValue]
Env = dict[
    str,
    Annotated[str, BeforeValidator(_env_text), WithJsonSchema({"type": ["string", "number", "boolean"]})],
]


class _Strict(BaseModel):
    # strict: `tp: true` and `tp: "2"` are slips, not numbers
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Engine(_Strict):
    """What serves the model."""

    kind: Literal["vllm", "sim"] = Field("vllm", description="vllm, or sim: a simulated engine that needs no GPU")
    device: Literal["gpu", "cpu"] = Field(
        "gpu", description="cpu: vLLM's CPU build; no GPU is counted, placed or made visible"
    )
    python: Text | None = Field(
        None, description="Interpreter that has vLLM, on each host; default: python3 of `activate`, else of PATH"
    )
    activate: Text | None = Field(None, description="Shell line that is run before the interpreter, such as a venv's")
    version: Text | None = Field(
        None, description="vLLM's version; default: asked from each host", examples=["0.22.1", "0.33.0"]
    )
    args: Args = Field({}, description="vLLM flags of every engine; true: bare flag, list: repeated values")
    env: Env = Field({}, description="Environment of every engine")


class RoleSpec(_Strict):
    """One role's replicas; unset sizes fall back to the top level's."""

    replicas: Count | None = Field(None, description="Number of replicas; `layout` says it too, and both must agree")
    tp: Size | None = Field(None, description="Tensor parallel size of this role's replicas; default: the top level's")
    dp: Size | None = Field(None, description="Data parallel size inside a replica; default: the top level's")
    pp: Size | None = Field(None, description="Pipeline parallel size of a replica; default: the top level's")
    args: Args = Field({}, description="vLLM flags of this role; they win over engine.args")
    env: Env = Field({}, description="Environment of this role; it wins over engine.env")
    hosts: list[str] = Field([], description="Names of the hosts that this role may use; default: all")


class InnerConnectorSpec(_Strict):
    """A connector inside MultiConnector."""

    name: Text = Field(description="Short name or vLLM's class name", examples=["nixl", "offloading"])
    extra: dict[str, Any] = Field({}, description="Goes into its own kv_connector_extra_config")


class ConnectorSpec(_Strict):
    """The KV connector: a short name or vLLM's class name, and what goes into kv_connector_extra_config."""

    name: Text = Field(description="Short name or vLLM's class name", examples=["nixl", "p2p_nccl"])
    extra: dict[str, Any] = Field({}, description="Goes into vLLM's kv_connector_extra_config")
    connectors: list[InnerConnectorSpec] = Field(
        [], description="For `multi`: the connectors inside, the first asked first"
    )


class Ssh(_Strict):
    """How to log in on a host; what is left out comes from ~/.ssh/config."""

    host: Text = Field(description="Name or address to log in at, or an alias of ~/.ssh/config")
    user: Text | None = Field(None, description="Login name")
    port: Port | None = Field(None, description="Port of the ssh server; default 22")
    identity_file: Text | None = Field(None, description="Private key file")
    jump: Text | None = Field(None, description="Host to go through (ProxyJump)")


class Host(_Strict):
    """A machine; without `ssh` it is this one."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)] = Field(
        description="What the rest of the file calls it"
    )
    address: Text | None = Field(
        None, description="What peers connect to (data network): a name, IPv4 or IPv6; needed with two or more hosts"
    )
    """None only for a single local host, where it means 127.0.0.1."""
    gpus: Count | list[GpuId] | None = Field(
        None, description="A count, or a list of ids or UUIDs; default: what NVML shows there"
    )
    gpu_memory: Bytes | None = Field(
        None,
        description="Memory of each GPU, for planning without the host; default: what NVML shows",
        examples=["80GiB"],
    )
    ssh: Ssh | None = Field(None, description="How to log in; absent: the host is this machine")
    interface: Text | None = Field(None, description="Network interface for NCCL, Gloo and UCX", examples=["eth0"])
    workdir: Text = Field("~/.pdctl", description="Folder on the host for state and logs")
    python: Text | None = Field(None, description="Overrides engine.python on this host")
    activate: Text | None = Field(None, description="Overrides engine.activate on this host")
    env: Env = Field({}, description="Environment of the engines on this host; it wins over all others")


class Placement(_Strict):
    """A pin of one instance to a host; instances without one are packed."""

    instance: Text = Field(description="Such as producer-0 or consumer-1", examples=["producer-0"])
    host: Text = Field(description="Name of a host of this file")
    gpus: list[GpuId] | None = Field(None, description="Ids or UUIDs; default: chosen by pdctl")


class ProxySpec(_Strict):
    """The front that takes requests."""

    kind: Literal["auto", "vllm-router", "builtin", "none"] = Field("auto", description="Which proxy; none: no proxy")
    host: Text | None = Field(None, description="Name of the host it runs on; default: the first")
    bind: Text = Field("127.0.0.1", description="Address it listens on")
    port: Port = Field(8000, description="Port it listens on")
    args: Args = Field({}, description="Flags of the proxy")
    api_key_env: str | None = Field(
        None, description="Name of the environment variable that holds the API key, never the key itself"
    )


class Ports(_Strict):
    """Where pdctl takes ports from; they lie below those that Linux hands out by itself (32768)."""

    base: Port = Field(20000, description="First port")
    size: Annotated[int, Field(ge=1, le=65535)] = Field(2000, description="Number of ports")


class Health(_Strict):
    """When an instance counts as ready and as alive."""

    startup_timeout: Seconds = Field(1200.0, description="How long a start may take")
    interval: Seconds = Field(5.0, description="Time between two looks at an instance")
    deep: bool = Field(True, description="Also look for progress, not at /health alone")


class Restart(_Strict):
    """What happens when an instance ends by itself."""

    policy: Literal["on-failure", "always", "never"] = Field("on-failure", description="When to start it again")
    max: Annotated[int, Field(ge=0, le=1_000_000)] = Field(3, description="Most restarts within `window`")
    window: Seconds = Field(600.0, description="Time in which restarts are counted")
    backoff: Seconds = Field(5.0, description="Wait before the first restart; it doubles with each")


class Logs(_Strict):
    """Bounds of the log files that each instance keeps on its host."""

    max_size: Bytes = Field(100 * 2**20, description="Size at which a log file is rotated")
    keep: Annotated[int, Field(ge=0, le=10_000)] = Field(5, description="Number of rotated files that are kept")


class Topology(_Strict):
    """One cluster as the user wrote it, defaults filled in. `layout` is already folded into the roles' `replicas`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] = Field(
        description="Name of the cluster; default: the file's stem"
    )
    model: Text = Field(description="A path on the hosts, or a hub id")
    config_json: Text | None = Field(
        None,
        description="The model's config.json on this machine, for the memory figures; default: in the model's folder",
    )
    served_model_name: Text | None = Field(
        None, description="What clients call it; default: the model's last path part"
    )
    layout: Annotated[str, Field(pattern=r"^\d+P\d+D$")] | None = Field(
        None, description="Number of prefill and decode replicas", examples=["1P1D", "2P4D"]
    )
    tp: Size = Field(1, description="Tensor parallel size of every replica")
    dp: Size = Field(1, description="Data parallel size inside a replica")
    pp: Size = Field(1, description="Pipeline parallel size of every replica")
    gpus: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="Declared total of GPUs; must equal what the layout needs"
    )
    allow_idle_gpus: bool = Field(False, description="true: hosts may have more GPUs than the layout needs")
    share_gpus: Size = Field(1, description="Ranks that may share one GPU; 2: a whole 1P1D on one GPU")
    engine: Engine = Field(Engine(), description="What serves the model")
    prefill: RoleSpec = Field(RoleSpec(), description="The producers: they prefill and hand the KV cache over")
    decode: RoleSpec = Field(RoleSpec(), description="The consumers: they take the KV cache and decode")
    aggregated: RoleSpec = Field(RoleSpec(), description="Plain vLLM replicas behind the same proxy: the baseline")
    connector: ConnectorSpec | None = Field(None, description="The KV connector: a name, or {name, extra}")
    """None only when there is neither a producer nor a consumer."""
    hosts: list[Host] = Field([], description="The machines; default: this one, with the GPUs that NVML shows")
    placement: list[Placement] = Field([], description="Pins of instances; the rest is packed")
    proxy: ProxySpec = Field(ProxySpec(), description="The front that takes requests")
    ports: Ports = Field(Ports(), description="Where pdctl takes ports from")
    health: Health = Field(Health(), description="When an instance counts as ready and as alive")
    restart: Restart = Field(Restart(), description="What happens when an instance ends by itself")
    logs: Logs = Field(Logs(), description="Bounds of the log files")
