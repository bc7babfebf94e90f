"""Flags of `vllm serve` from the sources: what argparse would be told, without running vLLM.

vLLM builds most flags from config dataclasses (engine/arg_utils.py, `get_kwargs`): the field's annotation decides type and
choices. `kind` below is what a value must look like:

int, float, str · size (int with k, M, G) · auto-size (size, -1 or auto) · bool (`--x` and `--no-x`) · switch (`--x` only) ·
json · list-int, list-float, list-str (several values) · append (given once a value) · any (could not be told)
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.vllm_facts.sources import Sources

_ARG_UTILS = "vllm/engine/arg_utils.py"
_CLI_ARGS = "/cli_args.py"
_WRAPPERS = ("Optional", "Annotated", "SkipValidation", "ClassVar", "InitVar", "Final")
_CONTAINERS = {
    "list": "list",
    "List": "list",
    "tuple": "tuple",
    "Tuple": "tuple",
    "set": "set",
    "dict": "dict",
    "Dict": "dict",
    "Mapping": "dict",
    "Sequence": "list",
}
_PLAIN = ("int", "float", "str", "bool", "Any")


def read_flags(sources: Sources) -> dict[str, dict[str, Any]]:
    """Return long flag without dashes -> {kind, choices?, default?, short?}."""
    found: dict[str, dict[str, Any]] = {}
    cli_args = _front_end(sources)
    reader = _Reader(sources)
    for path, classes, functions in (
        (_ARG_UTILS, ("EngineArgs", "AsyncEngineArgs"), ()),
        (cli_args, (), ("make_arg_parser",)),
    ):
        tree = sources.tree(path)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in classes:
                for member in node.body:
                    if isinstance(member, ast.FunctionDef) and member.name.startswith(("add_cli_args", "_add")):
                        found |= reader.added_in(path, member)
            if isinstance(node, ast.FunctionDef) and node.name in functions:
                found |= reader.added_in(path, node)
    for name in ("BaseFrontendArgs", "FrontendArgs"):
        found |= reader.all_fields(cli_args, name)
    return dict(sorted(found.items()))


def _front_end(sources: Sources) -> str:
    """Return the module with the server's own flags: it has moved three times."""
    for path in sources.under("vllm/entrypoints/"):
        if path.endswith(_CLI_ARGS) and "def make_arg_parser" in sources.text(path):
            return path
    raise LookupError("no cli_args.py under vllm/entrypoints has make_arg_parser")


class _Reader:
    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        text = sources.text(_ARG_UTILS)
        self.sizes = _string_set(sources.tree(_ARG_UTILS), "human_readable_int_args") | _compared(
            sources.tree(_ARG_UTILS), "human_readable_int"
        )
        self.auto_sizes = _compared(sources.tree(_ARG_UTILS), "human_readable_int_or_auto")
        self.human = "human_readable_int" in text

    # - add_argument calls -

    def added_in(self, path: str, function: ast.FunctionDef) -> dict[str, dict[str, Any]]:
        """Return the flags that a function adds with literal names."""
        configs = _assigned_configs(function)
        found: dict[str, dict[str, Any]] = {}
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
                long = [name[2:] for name in names if name.startswith("--")]
                if long:
                    entry = self._from_call(path, call, configs)
                    short = [name[1:] for name in names if name.startswith("-") and not name.startswith("--")]
                    if short:
                        entry["short"] = short[0]
                    found |= dict.fromkeys(long, entry)
        return found

    def _from_call(self, path: str, call: ast.Call, configs: dict[str, str]) -> dict[str, Any]:
        entry: dict[str, Any] = {"kind": "str"}
        for keyword in call.keywords:
            if keyword.arg is None:
                entry |= self._from_star(path, keyword.value, configs)
        explicit = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        return self._with_keywords(entry, explicit)

    def _from_star(self, path: str, value: ast.expr, configs: dict[str, str]) -> dict[str, Any]:
        if isinstance(value, ast.Dict):  # {**scheduler_kwargs["max_num_seqs"], "default": None}
            entry: dict[str, Any] = {"kind": "any"}
            for key, one in zip(value.keys, value.values, strict=True):
                if key is None:
                    entry = self._from_star(path, one, configs)
                elif isinstance(key, ast.Constant):
                    entry = self._with_keywords(entry, {str(key.value): one})
            return entry
        if (
            isinstance(value, ast.Subscript)
            and isinstance(value.value, ast.Name)
            and isinstance(value.slice, ast.Constant)
        ):
            config = configs.get(value.value.id)
            if config is not None:
                return self._field(path, config, str(value.slice.value))
        return {"kind": "any"}

    @staticmethod
    def _with_keywords(entry: dict[str, Any], explicit: dict[str, ast.expr]) -> dict[str, Any]:
        action = explicit.get("action")
        if action is not None:
            text = ast.unparse(action)
            if "store_true" in text or "store_false" in text:
                return {"kind": "switch", "default": False}
            if "BooleanOptionalAction" in text:
                entry = {**entry, "kind": "bool"}
            elif "append" in text:
                entry = {**entry, "kind": "append"}
        if "type" in explicit:
            entry = {**entry, "kind": _kind_of_type(ast.unparse(explicit["type"]), entry["kind"])}
            entry.pop("choices", None)
        if "choices" in explicit:
            try:
                entry["choices"] = [one for one in ast.literal_eval(explicit["choices"]) if one is not None]
            except ValueError:
                entry.pop("choices", None)
        if (
            "nargs" in explicit
            and isinstance(explicit["nargs"], ast.Constant)
            and explicit["nargs"].value in ("+", "*")
        ):
            entry["kind"] = f"list-{entry['kind']}" if entry["kind"] in ("int", "float", "str") else "any"
        if "default" in explicit:
            entry.pop("default", None)
            _set_default(entry, explicit["default"])
        return entry

    # - dataclass fields -

    def all_fields(self, path: str, name: str) -> dict[str, dict[str, Any]]:
        """Return a flag for each field of a class whose fields all become flags (FrontendArgs)."""
        found = self.sources.class_def(path, name)
        if found is None:
            return {}
        at, node = found
        flags: dict[str, dict[str, Any]] = {}
        for member in node.body:
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                flags[member.target.id] = self._field_of(at, member)
        for field, key, value in _customised(node):
            if field not in flags:
                continue
            if key == "type":
                flags[field] = {
                    **flags[field],
                    "kind": _kind_of_type(ast.unparse(value), flags[field]["kind"]) if value is not None else "any",
                }
            elif key == "action" and value is not None and "append" in ast.unparse(value):
                flags[field] = {**flags[field], "kind": "append"}
            elif key == "nargs" and value is None and flags[field]["kind"].startswith("list-"):
                flags[field] = {**flags[field], "kind": "str"}
        return {field.replace("_", "-"): entry for field, entry in flags.items()}

    def _field(self, path: str, config: str, field: str) -> dict[str, Any]:
        found = self.sources.class_def(path, config)
        while found is not None:
            at, node = found
            for member in node.body:
                if (
                    isinstance(member, ast.AnnAssign)
                    and isinstance(member.target, ast.Name)
                    and member.target.id == field
                ):
                    return self._field_of(at, member)
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            found = self.sources.class_def(at, bases[0]) if bases else None
        return {"kind": "any"}

    def _field_of(self, path: str, member: ast.AnnAssign) -> dict[str, Any]:
        assert isinstance(member.target, ast.Name)
        hints = set(self._hints(path, member.annotation))
        entry = self._entry(member.target.id, hints)
        if member.value is not None:
            _set_default(entry, member.value)
        return entry

    def _entry(self, name: str, hints: set[Any]) -> dict[str, Any]:
        """Follow `_compute_kwargs` of vLLM's engine/arg_utils.py, in its order."""
        literals = [hint for hint in hints if isinstance(hint, tuple) and hint[0] == "literal"]
        containers = {
            hint[0]: hint[1]
            for hint in hints
            if isinstance(hint, tuple) and hint[0] in ("list", "tuple", "set", "dict")
        }
        if "dataclass" in hints:
            return {"kind": "json"}
        if "bool" in hints:
            return {"kind": "any" if "str" in hints else "bool"}
        if literals:
            options = [option for literal in literals for option in literal[1]]
            kind = "int" if options and isinstance(options[0], int) else "str"
            return {"kind": kind} if "str" in hints else {"kind": kind, "choices": options}
        for container in ("tuple", "list", "set"):
            if container in containers:
                inner = containers[container]
                return {"kind": f"list-{inner}" if inner in ("int", "float", "str") else "any"}
        if "int" in hints:
            return {"kind": "auto-size" if name in self.auto_sizes else "size" if name in self.sizes else "int"}
        if "float" in hints:
            return {"kind": "float"}
        if "dict" in containers:
            return {"kind": "any" if "str" in hints or "other" in hints else "json"}
        return {"kind": "str" if hints & {"str", "other"} else "any"}

    def _hints(self, path: str, node: ast.expr, depth: int = 0) -> Iterator[Any]:
        """Yield the leaves of an annotation: names of plain types, ("literal", options), (container, inner), dataclass, other."""
        if depth > 12:
            return
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield from self._hints(path, ast.parse(node.value, mode="eval").body, depth + 1)
            elif node.value is None:
                yield "None"
        elif isinstance(node, ast.BinOp):
            yield from self._hints(path, node.left, depth + 1)
            yield from self._hints(path, node.right, depth + 1)
        elif isinstance(node, ast.Subscript):
            yield from self._subscript(path, node, depth)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            yield from self._named(path, ast.unparse(node).rsplit(".", 1)[-1], depth)

    def _subscript(self, path: str, node: ast.Subscript, depth: int) -> Iterator[Any]:
        head = ast.unparse(node.value).rsplit(".", 1)[-1]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if head == "Literal":
            yield ("literal", tuple(self._options(path, inner)))
        elif head in ("Union", *_WRAPPERS):
            for one in inner if head == "Union" else inner[:1]:
                yield from self._hints(path, one, depth + 1)
            if head == "Optional":
                yield "None"
        elif head in _CONTAINERS:
            kinds = {hint for hint in self._hints(path, inner[0], depth + 1) if isinstance(hint, str)}
            yield (_CONTAINERS[head], next(iter(sorted(kinds & {"int", "float", "str"})), "other"))
        else:
            yield "other"

    def _options(self, path: str, nodes: list[ast.expr]) -> Iterator[Any]:
        """Yield a Literal's values; a name among them stands for another Literal."""
        for node in nodes:
            if isinstance(node, ast.Constant):
                yield node.value
            elif isinstance(node, (ast.Name, ast.Attribute)):
                for hint in self._named(path, ast.unparse(node), 1):
                    if isinstance(hint, tuple) and hint[0] == "literal":
                        yield from hint[1]

    def _named(self, path: str, name: str, depth: int) -> Iterator[Any]:
        if name in _PLAIN:
            yield name
        elif name in _CONTAINERS:
            yield (_CONTAINERS[name], "other")
        elif name in ("None", "NoneType"):
            yield "None"
        else:
            found = self.sources.definition(path, name)
            if found is None:
                yield "other"
            elif isinstance(found[1], ast.ClassDef):
                decorators = {ast.unparse(one).split("(")[0].rsplit(".", 1)[-1] for one in found[1].decorator_list}
                bases = {ast.unparse(base).split("[")[0] for base in found[1].bases}
                yield (
                    ("dict", "other")
                    if bases & {"dict", "TypedDict"}
                    else "dataclass"
                    if decorators & {"dataclass", "config"}
                    else "other"
                )
            elif isinstance(found[1], ast.expr):
                yield from self._hints(found[0], found[1], depth + 1)


def _assigned_configs(function: ast.FunctionDef) -> dict[str, str]:
    """Return variable -> config class of `x_kwargs = get_kwargs(XConfig)`."""
    found = {}
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == "get_kwargs"
        ):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = ast.unparse(node.value.args[0])
    return found


def _customised(node: ast.ClassDef) -> Iterator[tuple[str, str, ast.expr | None]]:
    """Yield (field, key, value or None for `del`) of `frontend_kwargs["field"]["key"] = value`."""
    for one in ast.walk(node):
        targets = one.targets if isinstance(one, (ast.Assign, ast.Delete)) else []
        for target in targets:
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Subscript):
                field, key = target.value.slice, target.slice
                if isinstance(field, ast.Constant) and isinstance(key, ast.Constant):
                    yield str(field.value), str(key.value), one.value if isinstance(one, ast.Assign) else None


def _kind_of_type(text: str, before: str) -> str:
    if before == "append":
        return before
    if "lambda" in text:
        return "any"
    for part, kind in (("json.loads", "json"), ("human_readable_int_or_auto", "auto-size"), ("human_readable_int", "size"),
                       ("float", "float"), ("int", "int"), ("union_dict_and_str", "any"), ("str", "str")):  # fmt: skip
        if part in text:
            return f"list-{kind}" if before.startswith("list-") and kind in ("int", "float", "str") else kind
    return "any"


def _set_default(entry: dict[str, Any], node: ast.expr) -> None:
    """Keep a default that is a plain literal; `Field(default=0.9, ...)` has one too."""
    if isinstance(node, ast.Call):
        named = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
        if not named and node.args and ast.unparse(node.func).endswith("Field"):
            named = [node.args[0]]
        if not named:
            return
        node = named[0]
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return
    if value is not None and isinstance(value, (bool, int, float, str)) and value is not ...:
        entry["default"] = value


def _string_set(tree: ast.Module, name: str) -> set[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


def _compared(tree: ast.Module, function: str) -> set[str]:
    """Return the names of `if name == "x": kwargs[name]["type"] = function`, also with `name in (...)`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if not (
            isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and ast.unparse(node.test.left) == "name"
        ):
            continue
        assigned = [one.value for one in node.body if isinstance(one, ast.Assign)]
        if any(ast.unparse(value) == function for value in assigned):
            try:
                names = ast.literal_eval(node.test.comparators[0])
            except ValueError:
                continue
            found |= {names} if isinstance(names, str) else set(names)
    return found
