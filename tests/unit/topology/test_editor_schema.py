"""The JSON Schema for editors: accepts what the loader accepts, and explains every key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pdctl.topology.load import json_schema, load_topology
from tests.unit.topology.loading import GOOD

ROOT = Path(__file__).parents[3]
FILES = sorted([*ROOT.glob("examples/*.yaml"), *ROOT.glob("templates/*.yaml")])
ACCEPTED = {
    "short": GOOD,
    "class name": GOOD.replace("nixl", "NixlConnector"),
    "mapping": GOOD.replace("nixl", "{name: nixl, extra: {a: [1]}}"),
    "durations and sizes": GOOD + "health: {interval: 5s, startup_timeout: 1200}\nlogs: {max_size: 100MiB}\n",
    "references": GOOD + 'tp: "${TP:-2}"\nallow_idle_gpus: ${IDLE:-true}\nproxy: {port: "${PORT:-8000}"}\n',
    "references in units": GOOD + 'health: {interval: "${N:-5}s"}\nengine: {kind: "${K:-sim}"}\n',
    "empty sections": GOOD + "engine:\nhosts:\nprefill:\n",
    "numbers as text": GOOD + "engine: {version: 0.30, env: {A: 1, B: true, C: x}}\n",
    "gpus": GOOD + "hosts:\n  - {name: a, address: x, gpus: 8}\n  - {name: b, address: y, gpus: [0, GPU-1]}\n",
    "args": GOOD + "engine: {args: {a: 1, b: true, c: [x, 2], d: {e: f}, g: null}}\n",
}
REFUSED = {
    "no model": "layout: 1P1D\n",
    "unknown key": GOOD + "zzz: 1\n",
    "unknown key below": GOOD + "prefill: {tensor_parallel: 2}\n",
    "bad layout": GOOD.replace("1P1D", "1P-1D"),
    "negative": GOOD + "tp: -1\n",
    "word for number": GOOD + "tp: two\n",
    "bad choice": GOOD + "engine: {kind: vlm}\n",
    "bad duration": GOOD + "health: {interval: soon}\n",
    "bad size": GOOD + "logs: {max_size: big}\n",
    "host without name": GOOD + "hosts: [{address: x}]\n",
    "port too big": GOOD + "proxy: {port: 70000}\n",
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json_schema()


def _valid(schema: dict[str, Any], text: str) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(yaml.safe_load(text)))


def test_it_is_a_schema_of_its_draft(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["required"] == ["model"]


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_shipped_files_follow_it_and_load(schema: dict[str, Any], file: Path) -> None:
    text = file.read_text()
    assert _valid(schema, text)
    assert load_topology(text, file=file.name, default_name="x", environ={}).topology.model


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_what_the_loader_takes_it_takes(schema: dict[str, Any], text: str) -> None:
    assert load_topology(text, file="t.yaml", default_name="t", environ={}).topology.model
    errors = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(text))]
    assert errors == []


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_slips_are_underlined(schema: dict[str, Any], text: str) -> None:
    assert not _valid(schema, text)


def test_every_key_is_explained(schema: dict[str, Any]) -> None:
    models = {"": schema, **{name: one for name, one in schema["$defs"].items() if "properties" in one}}
    bare = [
        f"{name}.{key}"
        for name, model in models.items()
        for key, one in model["properties"].items()
        if not one.get("description")
    ]
    assert bare == []
    assert all(model.get("description") for model in models.values())
