"""pdctl schema."""

from __future__ import annotations

from pdctl.cli.result import Result


def command() -> Result:
    """Print the JSON Schema of the topology file, for editors and CI."""
    import json

    from pdctl.topology.load import json_schema

    schema = json_schema()
    return Result(schema, text=json.dumps(schema, indent=2) + "\n")
