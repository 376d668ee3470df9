"""Writes docs/api.md, the reference of what `import medley` gives, from signatures and docstrings.

Of a dataclass also the fields, each with the comment beside it. Fails if anything public has no
docstring. --check fails if the page is not what would be written.
"""

import argparse
import dataclasses
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
WIDTH = 100
# In the order of use.
CHAPTERS = {
    "Capture and plan": ["capture", "substitute", "Graph", "Cluster", "plan", "Plan"],
    "Train": [
        "Trainer",
        "JointTrainer",
        "Objective",
        "Metrics",
        "Loader",
        "StreamLoader",
        "BatchSampler",
        "Lengths",
    ],
    "Callbacks": ["Callback", "Progress", "TensorBoard", "WandB"],
    "Optimizers": [
        "optimizer.Optimizer",
        "AdamW",
        "AdamW8bit",
        "Adam",
        "SGD",
        "Adafactor",
        "Lion",
        "Muon",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "Adamax",
        "NAdam",
        "RAdam",
        "Rprop",
        "Groups",
        "optimizer.pointwise",
        "optimizer.whole",
        "from_torch",
    ],
    "Schedules": [
        "warmup",
        "cosine",
        "linear",
        "polynomial",
        "inverse_sqrt",
        "warmup_stable_decay",
        "scheduled",
    ],
}
HEAD = """# API reference

What `import medley` gives. Written from the docstrings by `scripts/api_reference.py`; a test keeps
it current. Sizes are in bytes and times in seconds, unless the name says otherwise. Bad input
raises `ValueError`, a file or a network that fails `OSError`, a fault of Medley `RuntimeError`;
each message names the place, what was found and what was expected.
"""
# Classes whose fields users write and whose methods the trainer calls: of a base, the fields are
# said once, in the entry of that base.
DESCRIPTIONS = ("optimizer.Optimizer",)
FIELD = re.compile(r"^    (\w+): [^#\n]*(?:# (.*))?$", re.M)


def signature(name: str, what: Any) -> str:
    """Returns the call as it is written, one argument a line where it is long."""
    native = getattr(what, "__nb_signature__", None)  # of an extension module
    if native:
        arguments = native[0][0].split("(", 1)[1].removeprefix("self, ").removeprefix("self")
        return f"{name}({arguments}".replace("medley._core.", "")
    shown = inspect.signature(what)
    arguments: list[str] = []
    for each in shown.parameters.values():
        if each.kind is each.KEYWORD_ONLY and "*" not in arguments:
            arguments.append("*")
        default = "" if each.default is each.empty else f" = {each.default!r}"
        if each.name != "self":
            arguments.append(f"{each.name}: {each.annotation}{default}")
    returns = "" if inspect.isclass(what) else f" -> {shown.return_annotation}"
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in arguments), f"){returns}"])


def docstring(name: str, what: Any) -> str:
    native = getattr(what, "__nb_signature__", None)
    text = native[0][1] if native else inspect.getdoc(what)
    if not text or text.startswith("(self)"):
        sys.exit(f"{name}: found no docstring, expected one: it is public")
    return text


def code(text: str) -> list[str]:
    return ["```python", text, "```", ""]


def is_native(what: Any) -> bool:
    """Whether this is a class of an extension module, which functions of its own make."""
    return inspect.isclass(what) and what.__module__ == "medley._core"


def described(kind: type) -> type | None:
    """Returns the base of a class, or the class, whose fields only are for users."""
    import medley

    bases = [named(medley, name) for name in DESCRIPTIONS]
    return next((base for base in bases if issubclass(kind, base)), None)


def members(kind: type) -> list[tuple[str, Any]]:
    """Returns the public methods and properties, then those of bases of ours, in order."""
    if described(kind):
        return []
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("medley"):
            found = found | {
                n: v for n, v in vars(base).items() if not n.startswith("_") and n not in found
            }
    shown = (property, staticmethod, classmethod)
    return [
        (name, value)
        for name, value in found.items()
        if inspect.isfunction(value)
        or isinstance(value, shown)
        or hasattr(value, "__nb_signature__")
    ]


def fields(kind: type) -> list[str]:
    if not dataclasses.is_dataclass(kind):
        return []
    comments: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("medley"):
            comments |= dict(FIELD.findall(inspect.getsource(base)))
    rows = []
    base = described(kind)
    said = {} if base in (kind, None) else base.__dataclass_fields__
    for field in dataclasses.fields(kind):
        if field.name in said and field.default == said[field.name].default:
            continue
        shown = str(field.type).replace("|", "\\|")
        rows.append(f"| `{field.name}` | `{shown}` | {comments[field.name]} |")
    return ["| field | type | |", "|---|---|---|", *rows, ""] if rows else []


def member(owner: str, name: str, what: Any) -> list[str]:
    if isinstance(what, property):
        getter: Any = what.fget
        native = getattr(getter, "__nb_signature__", None)
        shown = (
            native[0][0].rsplit("-> ", 1)[1]
            if native
            else inspect.signature(getter).return_annotation
        )
        return [f"`.{name}`: `{shown}`. {docstring(f'{owner}.{name}', what)}", ""]
    function = what.__func__ if isinstance(what, (staticmethod, classmethod)) else what
    static = function is not what or type(what).__name__ == "nb_func"
    prefix = owner if static else ""
    call = code(signature(f"{prefix}.{name}", function))
    return [*call, docstring(f"{owner}.{name}", function), ""]


def entry(name: str, what: Any) -> list[str]:
    short = is_native(what) or (inspect.isclass(what) and described(what))
    call = [] if short else code(signature(name, what))
    lines = [f"### {name}", "", *call, docstring(name, what), ""]
    if inspect.isclass(what):
        lines += fields(what)
        for each, value in members(what):
            lines += member(name, each, value)
    return lines


def named(package: ModuleType, name: str) -> Any:
    found: Any = package
    for part in name.split("."):
        found = getattr(found, part)
    return found


def page(package: ModuleType) -> str:
    exported = [name for names in CHAPTERS.values() for name in names if "." not in name]
    if sorted(exported) != sorted(package.__all__):
        odd = sorted(set(exported) ^ set(package.__all__))
        sys.exit(f"scripts/api_reference.py: CHAPTERS and medley.__all__ differ in {odd}")
    lines = [HEAD]
    for chapter, names in CHAPTERS.items():
        lines += [f"## {chapter}", ""]
        for name in names:
            lines += entry(name, named(package, name))
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "python"))
    import medley

    text = page(medley)
    if not args.check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print("docs/api.md is not current: run scripts/api_reference.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
