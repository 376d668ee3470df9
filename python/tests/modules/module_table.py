"""All cases, by "family/name"."""

from __future__ import annotations

import importlib
from pathlib import Path

from module_case import Case

TABLE: dict[str, Case] = {
    f"{path.stem.removeprefix('family_')}/{name}": case
    for path in sorted(Path(__file__).parent.glob("family_*.py"))
    for name, case in importlib.import_module(path.stem).CASES.items()
}
