"""The verbs of the core, asked from Python without PyTorch."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medley import _core
from medley.cluster import catalogue


def program() -> Path | None:
    """Returns the program beside this package that runs the verbs of the core, if there is one."""
    path = Path(_core.__file__).parent / "bin" / "medley"
    return path if os.access(path, os.X_OK) else None


def command_of_core() -> list[str]:
    """Returns the words that start a verb of the core in a process of its own."""
    path = program()
    return [sys.executable, "-m", "medley"] if path is None else [str(path)]


def ask(arguments: Sequence[str]) -> Any:
    """Returns the JSON that a verb of the core prints.

    Raises what the command line would report: ValueError, OSError or RuntimeError.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _core.run_cli([*arguments, "--json"], str(catalogue()))
    if code != 0:
        raise {2: ValueError, 3: OSError}.get(code, RuntimeError)(err.getvalue().strip())
    return json.loads(out.getvalue())


def simplified_graph(text: str, file: str) -> str:
    """Returns the text of a captured graph after the passes of the core, as `medley capture` writes
    it. `file` is for error messages."""
    core, _ = _core.Graph.parse(text, file).run_passes()
    return core.text()
