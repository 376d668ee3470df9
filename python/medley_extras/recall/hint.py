"""The line about a measured plan above the output of `medley plan` and `medley compare`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from medley.cluster import load_cluster
from medley.files import read_text
from medley.run.patience import say
from medley_extras.recall import store

_CLUSTERS = (".yaml", ".yml")


def before(arguments: Sequence[str], parse: Callable[[str], Any]) -> None:
    """Prints the newest measured plan of the graph and the cluster among the arguments, if the
    cache has one. `parse` reads the text of a graph."""
    where = store.measured()
    known = [] if where is None else list(store.entries(where))
    files = [file for file in arguments if os.path.isfile(file)] if known else []
    yaml = [file for file in files if file.endswith(_CLUSTERS)]
    clusters = _hashes(yaml, lambda file: load_cluster(file).hash)
    known = [each for each in known if each[0]["cluster"] in clusters.values()]
    others = [file for file in files if file not in clusters] if known else []
    graphs = _hashes(others, lambda file: parse(read_text(file)).hash())
    known = [each for each in known if each[0]["graph"] in graphs.values()]
    if known:
        key, entry = max(known, key=lambda each: each[1].when)
        rows = f"{key['question']['rows']} rows{', emulated' if key['emulation'] else ''}"
        say(f"{entry.sentence}, {rows}. `medley launch` begins with it.")


def _hashes(files: Sequence[str], hash_of: Callable[[str], str]) -> dict[str, str]:
    """Returns the hash of each valid file."""
    found: dict[str, str] = {}
    for file in files:
        with contextlib.suppress(ValueError, OSError):
            found[file] = hash_of(file)
    return found
