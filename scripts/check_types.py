"""Fails if two types have one qualified name: linked into one program they would break it silently.
The one-definition rule requires no diagnosis, and no compiler sees two files together. Types in
unnamed namespaces and in functions do not count. Tests and benchmarks are compared with the core
and with those of their own folder."""

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["medley", "python/src", "benchmarks"]
SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\'|^\s*#[^\n]*',
    re.DOTALL | re.MULTILINE,
)
NAMESPACE = re.compile(r"(?:inline )?namespace ?([\w:]*)$")
TYPE = re.compile(r"(?:struct|class|union|enum(?: class| struct)?) ([\w:]+(?: ?<[^()]*>)?)")
NOT_SEEN = "(not seen)"  # a scope with types of its own


def scope_of(statement: str) -> str:
    """Returns the name that a scope adds to those of its types. `statement` opens the scope."""
    text = re.sub(r"^(?:(?:public|private|protected): ?)+", "", " ".join(statement.split()))
    text = re.sub(r"^template ?<(?:[^<>]|<[^<>]*>)*> ?", "", text)
    if found := NAMESPACE.match(text):
        return found[1] or NOT_SEEN
    found = TYPE.match(text)
    return found[1] if found and not re.search(r"[()=]", text[found.end() :]) else NOT_SEEN


def types(text: str) -> list[tuple[str, int]]:
    """Returns the qualified names of all types that a file defines, with their lines."""
    text = SKIPPED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    found, scopes, start = [], [], 0
    for mark in re.finditer(r"[;{}]", text):
        if mark[0] == "{":
            statement = text[start : mark.start()]
            scopes.append(scope_of(statement))
            if NOT_SEEN not in scopes and "namespace" not in statement.split():
                found.append(("::".join(scopes), text.count("\n", 0, mark.start()) + 1))
        elif mark[0] == "}" and scopes:
            scopes.pop()
        start = mark.end()
    return found


def unit_of(path: Path) -> str:
    """Returns "" for files that are linked together, else the name of the program that links
    them."""
    name = path.relative_to(ROOT).as_posix()
    return str(path.parent) if name.endswith("_test.cpp") or name.startswith("benchmarks/") else ""


def main() -> int:
    places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp"}:
                continue
            for name, line in types(path.read_text()):
                places[name][unit_of(path)].append(f"{path.relative_to(ROOT)}:{line}")
    errors = 0
    for name, units in sorted(places.items()):
        together = units.pop("", [])
        for at in [together + alone for alone in units.values()] or [together]:
            if len(at) > 1:
                errors += 1
                print(f"{at[1]}: {name}: defined at {at[0]} too")
    return int(errors > 0)


if __name__ == "__main__":
    sys.exit(main())
