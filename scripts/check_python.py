"""Fail if Python touches a private member of another class or module, imports in a circle, or has a
class of too many methods.

A name with one underscore belongs to the class that defines it, or to the file. Imports inside
functions count; those for types alone do not.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "medley"
MOST_METHODS = 30
# Members of PyTorch with names that ours have, too.
FOREIGN = re.compile(
    r"torch\._\w+|(.*\.)?(_?module|get_submodule\(path\))\._(buffers|parameters)|options\._devices"
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(body: ast.AST) -> set[str]:
    """Returns the private names that a class, or a file outside of its classes, defines."""
    found: set[str] = set()
    for node in scope(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def scope(body: ast.AST) -> Iterator[ast.AST]:
    """Yields what is inside, but not what is inside of classes there."""
    for node in ast.iter_child_nodes(body):
        yield node
        if not isinstance(node, ast.ClassDef):
            yield from scope(node)


def is_own(node: ast.Attribute) -> bool:
    """Whether this is a member of `self`, or of a base."""
    if isinstance(node.value, ast.Name):
        return node.value.id in ("self", "cls")
    is_call = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
    return is_call and node.value.func.id == "super"


def touched(body: ast.AST, known: set[str]) -> Iterator[ast.Attribute]:
    """Yields the private names among those `known` that are taken from something else: in a class,
    those that it does not define."""
    own = defined(body) if isinstance(body, ast.ClassDef) else set()
    for node in scope(body):
        if isinstance(node, ast.ClassDef):
            yield from touched(node, known)
        elif isinstance(node, ast.Attribute) and node.attr in known - own and not is_own(node):
            yield node


def imported(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """Yields the modules among those of the package that a file imports when it runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{each.name}" for each in node.names]
            found = (each if each in modules else node.module for each in inner)
            yield from (each for each in found if each in modules)
        yield from imported(node, modules)


def circles(uses: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of modules that import each other, directly or not."""
    reach = {module: set(others) for module, others in uses.items()}
    while any([extend(reach, module) for module in reach]):
        pass
    groups = {tuple(sorted(o for o in reach[m] if m in reach[o])) for m in reach if m in reach[m]}
    return [list(group) for group in sorted(groups)]


def extend(reach: dict[str, set[str]], module: str) -> bool:
    before = len(reach[module])
    reach[module] |= {far for near in reach[module] for far in reach[near]}
    return len(reach[module]) > before


def main() -> int:
    files = {file: ast.parse(file.read_text()) for file in sorted(PACKAGE.rglob("*.py"))}
    names = {f: ".".join(f.relative_to(PACKAGE.parent).with_suffix("").parts) for f in files}
    names = {file: name.removesuffix(".__init__") for file, name in names.items()}
    classes = [c for tree in files.values() for c in ast.walk(tree) if isinstance(c, ast.ClassDef)]
    known = set().union(*map(defined, classes), *map(defined, files.values()))
    errors = []
    for file, tree in files.items():
        where = file.relative_to(ROOT)
        for node in touched(tree, known):
            if not FOREIGN.fullmatch(text := ast.unparse(node)):
                errors.append(f"{where}:{node.lineno}: {text}: a private member of another class")
        for each in ast.walk(tree):
            if isinstance(each, ast.ClassDef):
                count = sum(isinstance(node, ast.FunctionDef) for node in each.body)
                if count > MOST_METHODS:
                    errors.append(
                        f"{where}:{each.lineno}: {each.name} has {count} methods, at most "
                        f"{MOST_METHODS}: split it by idea"
                    )
    modules = set(names.values())
    uses = {names[f]: set(imported(tree, modules)) - {names[f]} for f, tree in files.items()}
    for group in circles(uses):
        errors.append(f"import circle: {', '.join(group)}")
    for error in errors:
        print(error)
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
