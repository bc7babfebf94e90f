"""JSON Schema of the file as people write it, for editors and CI."""

from __future__ import annotations

from typing import Any

from pdctl.topology.schema import Topology

_REFERENCE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"}
"""`${VAR}` may stand for any value."""
_WRITTEN_AS_NUMBER = frozenset({"version", "model", "served_model_name"})
"""Text that often looks like a number, and is taken as written."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the file as people write it."""
    schema = Topology.model_json_schema()
    definitions: dict[str, Any] = schema.pop("$defs")
    for model in (schema, *definitions.values()):
        for key, value in model["properties"].items():
            model["properties"][key] = _as_written(key, value)
    connector = schema["properties"]["connector"]
    connector["anyOf"].insert(0, {"type": "string", "minLength": 1, "examples": ["nixl", "p2p_nccl"]})
    definitions["Reference"] = {**_REFERENCE, "description": "A value from the environment"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "pdctl topology",
        "description": "A prefill/decode-disaggregated vLLM cluster",
        "required": ["model"],  # the name comes from the file's
        "$defs": definitions,
    }


def _as_written(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return one key's schema with what the loader also takes: `${VAR}`, an empty section, a number as text."""
    described = {name: schema[name] for name in ("description", "default", "examples") if name in schema}
    rest = {name: value for name, value in schema.items() if name not in (*described, "title")}
    choices = list(rest.pop("anyOf", [])) or [rest]
    if "default" in described and isinstance(described["default"], (dict, list)):
        del described["default"]  # says nothing that the keys below it don't
    kinds = {str(one.get("type")) for one in choices}
    if "$ref" in str(choices) or kinds & {"object", "array"}:
        choices.append({"type": "null"})
    elif key in _WRITTEN_AS_NUMBER:
        choices.append({"type": "number"})
    if _needs_reference(choices):
        choices.append({"$ref": "#/$defs/Reference"})
    unique = [one for index, one in enumerate(choices) if one not in choices[:index]]
    return {**(unique[0] if len(unique) == 1 else {"anyOf": unique}), **described}


def _needs_reference(choices: list[dict[str, Any]]) -> bool:
    """Tell whether `${VAR}` would be refused: everywhere but for free text."""
    if all("$ref" in one or one.get("type") in ("object", "array", "null") for one in choices):
        return False
    free = ({"type", "minLength"}, {"type"})
    return not any(one.get("type") == "string" and set(one) in free for one in choices)
