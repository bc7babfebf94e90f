"""Run by an interpreter that can import vLLM's sources: have vLLM's own parser and config classes judge command lines.

Reads {"argvs": [[...]], "whole": bool} from stdin. `whole` builds the VllmConfig too. Writes the last line: {"options": [...], "answers": [...]},
an answer being None for an accepted command line, else the error's text.
"""

import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
from unittest.mock import MagicMock

ABSENT = ("gguf",)
"""What 0.22.1 imports and 0.32.0's environment lacks; a parser needs nothing of it."""


class Stub(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ABSENT else None

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(Stub())

import vllm.platforms  # noqa: E402
from vllm.platforms.cpu import CpuPlatform  # noqa: E402

vllm.platforms._current_platform = CpuPlatform()  # bare sources have no metadata that says which build they are

from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402

try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402


def judge(parser, argv, whole):
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            given = parser.parse_args(argv)
        validate_parsed_serve_args(given)
        engine = AsyncEngineArgs.from_cli_args(given)
        config = engine.create_engine_config().kv_transfer_config if whole else engine.kv_transfer_config
    except SystemExit:
        return f"the parser ended: {said.getvalue()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    written = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    read = {key: getattr(config, key) for key in written}
    return None if read == written else f"read as {read}"


asked = json.load(sys.stdin)
parser = make_arg_parser(FlexibleArgumentParser())
options = sorted({option for action in parser._actions for option in action.option_strings})
print(json.dumps({"options": options, "answers": [judge(parser, one, asked["whole"]) for one in asked["argvs"]]}))
