"""Fail if two files of a room cannot be compiled in one batch (cmake/batches.cmake).

Names of their unnamed namespaces collide, with each other or with types of headers, and neither
says SKIP_UNITY_BUILD_INCLUSION in the room's CMakeLists.txt. Whoever has ccache compiles single
files and would not see it.
"""

import re
import sys
from collections import defaultdict

from check_layers import declared_deps
from check_types import NAMESPACE, ROOT, SKIPPED, TYPE, types

UNNAMED = "(unnamed)"
HIDDEN = "(hidden)"  # a scope whose names are its own
FUNCTION = re.compile(r"(\w+) ?\((.*)\)(?: const| noexcept)*$")
VALUE = re.compile(r"(?:static |const |constexpr |inline )+[^()={]*?(\w+)(?:\[[^\]]*\])* ?(?:=|$)")


def key_of(statement: str) -> str:
    """Returns the name that a statement defines, with its parameters if it is a function."""
    text = " ".join(re.sub(r"\[\[\w+\]\]", "", statement).split())
    text = re.sub(r"^template ?<(?:[^<>]|<[^<>]*>)*> ?", "", text)
    if found := TYPE.match(text):
        return found[1]
    if found := VALUE.match(text):
        return found[1]
    if found := FUNCTION.search(text):
        parameters = re.sub(r" ?= ?[^,]+", "", found[2])
        types = [re.sub(r" ?\b\w+$", "", each.strip()) for each in parameters.split(",")]
        return f"{found[1]}({', '.join(types)})"
    return ""


def hidden_names(text: str) -> dict[str, int]:
    """Returns what a file defines in unnamed namespaces, with its lines."""
    text = SKIPPED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    found: dict[str, int] = {}
    scopes: list[str] = []
    start = 0
    for mark in re.finditer(r"[;{}]", text):
        statement = text[start : mark.start()]
        if UNNAMED in scopes and HIDDEN not in scopes and mark[0] != "}":
            key = key_of(statement)
            if key and not (mark[0] == ";" and "(" in key):  # declarations of functions
                found[key] = text.count("\n", 0, mark.start()) + 1
        if mark[0] == "{":
            space = NAMESPACE.match(" ".join(statement.split()))
            scopes.append((space[1] or UNNAMED) if space else HIDDEN)
        elif mark[0] == "}" and scopes:
            scopes.pop()
        start = mark.end()
    return found


def public_types(room: str) -> dict[str, str]:
    """Returns the types of the headers that a room may include, with their places."""
    found = {}
    for name in [room, *sorted(declared_deps(ROOT / "medley" / room, "DEPS"))]:
        for path in sorted((ROOT / "medley" / name).glob("*.h")):
            for scoped, line in types(path.read_text()):
                if scoped.startswith("medley::") and scoped.count("::") == 1:
                    found[scoped.partition("::")[2]] = f"{path.relative_to(ROOT)}:{line}"
    return found


def main() -> int:
    failed = 0
    for room in sorted({path.parent for path in ROOT.glob("medley/*/CMakeLists.txt")}):
        skips = "SKIP_UNITY_BUILD_INCLUSION"
        listed = re.findall(
            rf"\(([\w.\s]+) PROPERTIES {skips}", (room / "CMakeLists.txt").read_text()
        )
        alone = {file for each in listed for file in each.split()}
        places: dict[str, list[str]] = defaultdict(list)
        for path in sorted(room.glob("*.cpp")):
            if path.name.endswith(("_test.cpp", "_bench.cpp")) or path.name in alone:
                continue
            for key, line in hidden_names(path.read_text()).items():
                places[key].append(f"{path.relative_to(ROOT)}:{line}")
        public = public_types(room.name)
        for key, found in sorted(places.items()):
            found = [public[key], *found] if key in public else found
            if len(found) > 1:
                failed += 1
                print(
                    f"{found[1]}: found {key}, which {found[0]} defines too: rename one, share it, "
                    f"or name a file before {skips} in {room.name}/CMakeLists.txt"
                )
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
