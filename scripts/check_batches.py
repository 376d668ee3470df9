"""Fails if files of a module compile alone but not in one batch (cmake/batches.cmake), or only in
one.

Sources of a module are in batches, and its tests in others. In a batch, names of unnamed namespaces
collide with each other or with types of headers, unless one of the files sets
SKIP_UNITY_BUILD_INCLUSION in the module's CMakeLists.txt. Alone, a file lacks the header of a
function or constant that another file of the batch included. With ccache single files are compiled,
otherwise batches: each build misses the errors of the other.
"""

import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

from check_layers import declared_deps
from check_types import NAMESPACE, ROOT, SKIPPED, TYPE, types

UNNAMED = "(unnamed)"
HIDDEN = "(hidden)"  # a scope with names of its own
FUNCTION = re.compile(r"(\w+) ?\((.*)\)(?: const| noexcept)*$")
VALUE = re.compile(r"(?:static |const |constexpr |inline )+[^()={]*?(\w+)(?:\[[^\]]*\])* ?(?:=|$)")
CONSTANT = re.compile(r"(?:inline |static |extern )*const(?:expr)? [^()={]*?(k[A-Z]\w*)")
MORE = re.compile(r", *(k[A-Z]\w*) *=")  # constants that share a declaration
USED = re.compile(r"(?<![\w.>:~])(?:([a-z]\w*_\w+)\(|(k[A-Z]\w*)\b(?!::))")


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
    """Returns the names that a file defines in unnamed namespaces, with their lines."""
    text = SKIPPED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    found: dict[str, int] = {}
    scopes: list[str] = []
    start = 0
    for mark in re.finditer(r"[;{}]", text):
        statement = text[start : mark.start()]
        if UNNAMED in scopes and HIDDEN not in scopes and mark[0] != "}":
            key = key_of(statement)
            others = MORE.findall(statement) if VALUE.match(" ".join(statement.split())) else []
            for each in (key, *others):
                if each and not (mark[0] == ";" and "(" in each):  # declarations of functions
                    found[each] = text.count("\n", 0, mark.start()) + 1
        if mark[0] == "{":
            space = NAMESPACE.match(" ".join(statement.split()))
            scopes.append((space[1] or UNNAMED) if space else HIDDEN)
        elif mark[0] == "}" and scopes:
            scopes.pop()
        start = mark.end()
    return found


def public_types(module: str) -> dict[str, str]:
    """Returns the types of the headers that a module may include, with their places."""
    found = {}
    for name in [module, *sorted(declared_deps(ROOT / "medley" / module, "DEPS"))]:
        for path in sorted((ROOT / "medley" / name).glob("*.h")):
            for scoped, line in types(path.read_text()):
                if scoped.startswith("medley::") and scoped.count("::") == 1:
                    found[scoped.partition("::")[2]] = f"{path.relative_to(ROOT)}:{line}"
    return found


def included(path: Path, closures: dict[Path, set[Path]]) -> set[Path]:
    """Returns the project's headers that a file reaches by its includes."""
    if path not in closures:
        closures[path] = {path}
        for name in re.findall(r'^#include "(\S+)"', path.read_text(), re.MULTILINE):
            if (ROOT / name).exists():
                closures[path] |= included(ROOT / name, closures)
    return closures[path]


def public_names(path: Path) -> set[str]:
    """Returns the functions and constants that a header declares in a namespace: no members."""
    text = SKIPPED.sub(" ", path.read_text())
    found, depth, start = set(), 0, 0
    for mark in re.finditer(r"[;{}]", text):
        statement = " ".join(re.sub(r"\[\[\w+\]\]", "", text[start : mark.start()]).split())
        if mark[0] == "{" and NAMESPACE.match(statement):
            depth -= 1  # a namespace does not count
        elif depth == 0 and (named := CONSTANT.match(statement)):
            found |= {named[1], *MORE.findall(statement)}
        elif depth == 0 and (named := re.match(r"[^=(]*?(\w+) ?\(", statement)):
            found.add(named[1])
        depth += {"{": 1, "}": -1, ";": 0}[mark[0]]
        start = mark.end()
    return found


@cache
def words_of(header: Path) -> set[str]:
    """Returns all names in a header, of members too."""
    return set(re.findall(r"\w+", SKIPPED.sub(" ", header.read_text())))


def not_included() -> list[str]:
    """Returns a line for each use of a header's name in a file that does not reach the header.
    Names are called functions, and constants. Names that are also defined in the file, or are
    members in a reached header, are skipped; so are functions of one word."""
    declared: dict[str, set[Path]] = defaultdict(set)
    for header in sorted(ROOT.glob("medley/*/*.h")):
        for name in public_names(header):
            declared[name].add(header)
    closures: dict[Path, set[Path]] = {}
    lines = []
    for path in sorted(ROOT.glob("medley/*/*.cpp")):
        text = SKIPPED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), path.read_text())
        reached = included(path, closures)
        modules = declared_deps(path.parent, "DEPS") | {path.parent.name}
        own = {re.sub(r"\W.*", "", each) for each in hidden_names(path.read_text())}
        own |= set(re.findall(r"(?<=[\w>&*] )(\w+)\b(?!\()", text))  # variables and parameters
        own |= set(re.findall(r"\b(?!return|else|throw)\w+[>&*]* (\w+)\(", text))  # defined here
        for used in USED.finditer(text):
            name = used[1] or used[2]
            headers = {h for h in declared.get(name, set()) if h.parent.name in modules}
            if not headers or headers & reached or name in own:
                continue
            if not any(name in words_of(each) for each in reached - {path}):  # a member
                line = text.count("\n", 0, used.start()) + 1
                missing = " or ".join(str(h.relative_to(ROOT)) for h in sorted(headers))
                lines.append(
                    f"{path.relative_to(ROOT)}:{line}: {name}: found no #include of {missing}"
                )
    return lines


def main() -> int:
    failed = 0
    for line in not_included():
        failed += 1
        print(line)
    for module in sorted({path.parent for path in ROOT.glob("medley/*/CMakeLists.txt")}):
        skips = "SKIP_UNITY_BUILD_INCLUSION"
        listed = re.findall(
            rf"\(([\w.\s]+) PROPERTIES {skips}", (module / "CMakeLists.txt").read_text()
        )
        alone = {file for each in listed for file in each.split()}
        public = public_types(module.name)
        files = [each for each in sorted(module.glob("*.cpp")) if each.name not in alone]
        for is_test in (False, True):
            places: dict[str, list[str]] = defaultdict(list)
            for path in files:
                if path.name.endswith("_test.cpp") != is_test or path.name.endswith("_bench.cpp"):
                    continue
                for key, line in hidden_names(path.read_text()).items():
                    if not key.startswith("TEST"):  # a macro of gtest
                        places[key].append(f"{path.relative_to(ROOT)}:{line}")
            for key, found in sorted(places.items()):
                found = [public[key], *found] if key in public else found
                if len(found) > 1:
                    failed += 1
                    print(
                        f"{found[1]}: found {key}, which {found[0]} defines too: rename one, share "
                        f"it, or name a file before {skips} in {module.name}/CMakeLists.txt"
                    )
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
