"""The verbs of the core, called from Python without PyTorch."""

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
    """Returns the program of the core's verbs in this package, or None."""
    path = Path(_core.__file__).parent / "bin" / "medley"
    return path if os.access(path, os.X_OK) else None


def command_of_core() -> list[str]:
    """Returns the words of a command line that run a verb of the core in a new process."""
    path = program()
    return [sys.executable, "-m", "medley"] if path is None else [str(path)]


def ask(arguments: Sequence[str]) -> Any:
    """Returns the JSON that a verb of the core prints. Raises ValueError, OSError or RuntimeError
    as the command line would report."""
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
