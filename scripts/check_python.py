"""Fails if Python code breaks a rule of structure.

It may not access a private member of another class or module, import in a circle, or have a class
with too many methods. Medley imports no package above its public API. Such a package uses only
names of Medley in docs/api.md.

A name with one underscore belongs to the class that defines it, or to the file. Imports inside
functions count. Imports for types count only between Medley and the packages above it.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOUSE, EXTRAS = "medley", "medley_extras"
# The only file that names the packages above: it finds their additions by name.
LOOKS_UP = "python/medley/extras.py"
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
    """Yields the nodes inside `body`, without those of classes in it."""
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
    """Yields the modules of the package that a file imports at run time."""
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


def documented() -> set[str]:
    """Returns the public names: "medley.plan", "medley.cluster.load_cluster"."""
    page = (ROOT / "docs" / "api.md").read_text()
    names = re.findall(r"^(?:### |`(?=medley\.))([\w.]+)(?=\(|$)", page, re.M)
    return {name if name.startswith(f"{HOUSE}.") else f"{HOUSE}.{name}" for name in names}


def taken(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the lines at which a file names something of Medley, and the full names."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] == HOUSE:
                    aliases[each.asname or HOUSE] = each.name if each.asname else HOUSE
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == HOUSE:
            for each in node.names:
                name = f"{node.module}.{each.name}"
                aliases[each.asname or each.name] = name
                yield node.lineno, name
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    inner = {id(node.value) for node in attributes}  # a in a.b: the whole name counts
    for node in attributes:
        if id(node) not in inner:
            first, *rest = ast.unparse(node).split(".")
            if first in aliases and all(part.isidentifier() for part in rest):
                yield node.lineno, ".".join([aliases[first], *rest])


def is_public(name: str, public: set[str]) -> bool:
    """Whether this is a public name, a member of one, or a module on the way to one."""
    if any(map(is_private, name.split("."))):
        return False
    of_one = any(f"{name}.".startswith(f"{each}.") for each in public)
    on_the_way = any(each.startswith(f"{name}.") for each in public)
    return of_one or on_the_way or name.rpartition(".")[2].startswith("__")


def above(where: str, tree: ast.AST, public: set[str], of_house: set[str]) -> Iterator[str]:
    """Yields the errors of a file above Medley. `of_house`: private names that only Medley has."""
    for line, name in taken(tree):
        if not is_public(name, public):
            yield f"{where}:{line}: {name}: not in docs/api.md, which has all public names"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_own(node) and node.attr in of_house:
            yield f"{where}:{node.lineno}: {ast.unparse(node)}: a private member of Medley"


def below(where: str, tree: ast.AST) -> Iterator[str]:
    """Yields the errors of a file of Medley that has the name of the packages above."""
    for node in ast.walk(tree):
        names = [getattr(node, "module", None), getattr(node, "value", None)]
        names += [each.name for each in getattr(node, "names", []) if isinstance(each, ast.alias)]
        if any(isinstance(each, str) and re.match(rf"{EXTRAS}\b", each) for each in names):
            yield f"{where}:{node.lineno}: {EXTRAS}: Medley may not know the packages above it"


def main() -> int:
    folders = [ROOT / "python" / HOUSE, ROOT / "python" / EXTRAS]
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    files = {path: ast.parse(path.read_text()) for path in paths}
    names = {f: ".".join(f.relative_to(ROOT / "python").with_suffix("").parts) for f in files}
    names = {file: name.removesuffix(".__init__") for file, name in names.items()}
    classes = [c for tree in files.values() for c in ast.walk(tree) if isinstance(c, ast.ClassDef)]
    known = set().union(*map(defined, classes), *map(defined, files.values()))
    own = {f: set().union(*map(defined, [t, *ast.walk(t)])) for f, t in files.items()}
    is_above = {file: EXTRAS in file.relative_to(ROOT).parts for file in files}
    of_extras = set().union(*(own[file] for file in files if is_above[file]))
    of_house = set().union(*(own[file] for file in files if not is_above[file])) - of_extras
    public = documented() if any(is_above.values()) else set()
    errors = []
    for file, tree in files.items():
        where = str(file.relative_to(ROOT))
        if is_above[file]:
            errors += above(where, tree, public, of_house)
        elif where != LOOKS_UP:
            errors += below(where, tree)
        errors += [
            f"{where}:{node.lineno}: {text}: a private member of another class"
            for node in touched(tree, known)
            if not FOREIGN.fullmatch(text := ast.unparse(node))
        ]
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
    errors += [f"import circle: {', '.join(group)}" for group in circles(uses)]
    for error in errors:
        print(error)
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
