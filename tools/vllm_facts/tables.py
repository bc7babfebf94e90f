"""What else is read: connectors with their extra keys, KVTransferConfig, environment variables, metrics, NIXL's version."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from pdctl.vllm.signatures import SIGNATURES

if TYPE_CHECKING:
    from tools.vllm_facts.sources import Sources

_FACTORY = "vllm/distributed/kv_transfer/kv_connector/factory.py"
_CONNECTORS = "vllm/distributed/kv_transfer/"
_KV_CONFIG = ("vllm/config/kv_transfer.py", "vllm/config/__init__.py", "vllm/config.py")
_EXTRA_KEY = re.compile(
    r"""(?:get_from_extra_config|extra_config(?:\.get)?)\s*[(\[]\s*(?:\#[^\n]*\n\s*)?["']([\w.]+)["']"""
)
_EXTRA_TEST = re.compile(r"""["']([\w.]+)["'] (?:not )?in (?:\w+\.)*\w*extra_config\b""")
_METRIC = re.compile(r"^vllm:[a-z_0-9]+$")
_SPEAKING = (
    "vllm/config",
    "vllm/distributed/kv_transfer/",
    "vllm/distributed/nixl_utils.py",
    "vllm/engine/",
    "vllm/entrypoints/",
    "vllm/envs.py",
    "vllm/model_executor/model_loader/",
    "vllm/model_executor/models/registry.py",
    "vllm/platforms/",
    "vllm/transformers_utils/config.py",
    "vllm/v1/",
)
"""Where an engine's start and its connectors speak from; one file beside V1's folder is V0's and long gone."""
_JOINED = re.compile(r"""(["'])\s*\n\s*f?\1""")
_NIXL_VERSION = re.compile(r"^NIXL_CONNECTOR_VERSION(?:: int)? = (\d+)", re.MULTILINE)


def read_connectors(sources: Sources) -> dict[str, dict[str, Any]]:
    """Return name -> {module, hma, extra}: what the factory registers.

    `hma`: whether the class itself is a `SupportsHMA`. `extra`: keys of kv_connector_extra_config that its module or package reads.
    """
    found = {}
    for call in ast.walk(sources.tree(_FACTORY)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("register_connector"):
            name, module, class_name = (ast.literal_eval(arg) for arg in call.args)
            if "kv_connector.v1." not in module:
                continue  # V0's connectors, which no V1 engine takes
            path = sources.module(module)
            if path is None:
                raise LookupError(f"{name}: no module {module}")
            found[name] = {
                "module": module.removeprefix("vllm.distributed.kv_transfer.kv_connector.v1."),
                "hma": _supports_hma(sources, path, class_name),
                "extra": _extra_keys(sources, path),
            }
    return dict(sorted(found.items()))


def _supports_hma(sources: Sources, path: str, class_name: str, depth: int = 0) -> bool:
    found = sources.class_def(path, class_name)
    if found is None or depth > 5:
        return False
    bases = [ast.unparse(base).split("[")[0].rsplit(".", 1)[-1] for base in found[1].bases]
    return "SupportsHMA" in bases or any(_supports_hma(sources, found[0], base, depth + 1) for base in bases)


def _extra_keys(sources: Sources, path: str) -> list[str]:
    folder = path.rsplit("/", 1)[0]
    files = [path]
    if not folder.endswith("/v1"):
        # A connector with a package of its own; the store inside Mooncake's is another connector.
        files = [one for one in sources.under(f"{folder}/") if "/store/" not in one[len(folder) :]]
    else:
        stem = path.rsplit("/", 1)[1].removesuffix(".py")
        if stem.startswith("lmcache"):
            files += sources.under(f"{folder}/lmcache_integration/")
    keys: set[str] = set()
    for file in files:
        text = sources.text(file)
        keys |= set(_EXTRA_KEY.findall(text)) | set(_EXTRA_TEST.findall(text))
    return sorted(keys)


def read_config_fields(sources: Sources) -> tuple[dict[str, dict[str, Any]], bool]:
    """Return (field -> {type, default?}, whether a field that the class lacks is refused)."""
    for path in _KV_CONFIG:
        found = sources.class_def(path, "KVTransferConfig") if path in sources.names else None
        if found is not None:
            break
    else:
        raise LookupError("no KVTransferConfig")
    _, node = found
    fields: dict[str, dict[str, Any]] = {}
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            fields[member.target.id] = _field(member)
    return fields, _forbids(sources, node)


def _field(member: ast.AnnAssign) -> dict[str, Any]:
    text = re.sub(r"Optional\[(.*)\]$", r"\1 | None", ast.unparse(member.annotation))
    entry: dict[str, Any] = {"type": text.replace("'", '"')}
    if member.value is not None:
        try:
            entry["default"] = ast.literal_eval(member.value)
        except ValueError:
            entry["default"] = ast.unparse(member.value)
    return entry


def _forbids(sources: Sources, node: ast.ClassDef) -> bool:
    """Say whether pydantic is told extra="forbid", by the decorator's arguments or in the decorator itself."""
    for decorator in node.decorator_list:
        text = ast.unparse(decorator)
        if "forbid" in text:
            return True
        name = text.split("(")[0].rsplit(".", 1)[-1]
        module = sources.module("vllm.config.utils")
        if name == "config" and module is not None:
            return any(
                isinstance(one, ast.FunctionDef) and one.name == "config" and "'forbid'" in ast.unparse(one)
                for one in sources.tree(module).body
            )
    return False


def read_environment(sources: Sources) -> dict[str, dict[str, Any]]:
    """Return the variables that envs.py knows -> {type}; another VLLM_ name is warned about from 0.17 on."""
    tree = sources.tree("vllm/envs.py")
    types: dict[str, str] = {}
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            types.setdefault(node.target.id, ast.unparse(node.annotation))
            if node.target.id == "environment_variables" and isinstance(node.value, ast.Dict):
                names += [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
    if not names:
        raise LookupError("envs.py has no environment_variables")
    return {
        name: {"type": re.sub(r"Optional\[(.*)\]$", r"\1 | None", types.get(name, "str"))}
        for name in sorted(set(names))
    }


def read_metrics(sources: Sources) -> dict[str, dict[str, Any]]:
    """Return the names of Prometheus metrics that V1 engines define."""
    found: set[str] = set()
    for path in [*sources.under("vllm/v1/"), *sources.under(_CONNECTORS)]:
        if "metrics" not in path and "/kv_connector/" not in path and "/kv_offload" not in path:
            continue
        for node in ast.walk(sources.tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _METRIC.match(node.value):
                found.add(node.value)
    return {name: {} for name in sorted(found)}


def read_nixl_version(sources: Sources) -> int | None:
    """Return NIXL_CONNECTOR_VERSION, which both sides of a transfer must share; None in releases without one."""
    for path in sources.under(f"{_CONNECTORS}kv_connector/v1/"):
        match = _NIXL_VERSION.search(sources.text(path)) if "nixl" in path else None
        if match:
            return int(match[1])
    return None


def read_messages(sources: Sources) -> dict[str, dict[str, Any]]:
    """Return the rows of pdctl/vllm/signatures.py whose text this release's sources have."""
    wanted = {row.name: row.said for row in SIGNATURES if row.said}
    found: set[str] = set()
    for place in _SPEAKING:
        for path in sources.under(place):
            text = _JOINED.sub("", sources.text(path))
            found |= {name for name, said in wanted.items() if name not in found and said in text}
    return {name: {} for name in sorted(found)}
