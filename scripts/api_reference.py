"""Writes docs/api.md, the reference of `import medley` and of modules for packages above it, from
signatures and docstrings. A dataclass has a table of its fields with their comments. Fails if a
public name has no docstring. --check fails if the page is not current."""

import argparse
import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
WIDTH = 100
GLUE = "\x00"  # stands for a space in code
AS_IT_IS: Any = {"break_long_words": False, "break_on_hyphens": False}
# Chapters in the order of use.
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
    "Callbacks": ["Callback", "Progress"],
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
# Names of modules, for packages above, by their import.
MODULES = {
    "Clusters, files, models by name": [
        "medley.cluster.load_cluster",
        "medley.cluster.parse_cluster",
        "medley.cluster.one_device",
        "medley.cluster.kinds_meant",
        "medley.cluster.near_kinds",
        "medley.files.read_text",
        "medley.files.write_atomically",
        "medley.files.whole_file",
        "medley.files.make_folder",
        "medley.files.require_writable",
        "medley.checkpoint.has_checkpoint",
        "medley.checkpoint.newest_complete",
        "medley.checkpoint.stored_values",
        "medley.checkpoint.StoredValue",
        "medley.weights_file.write_weights",
        "medley.run.change.PlanError",
        "medley.run.replanning.question",
        "medley.run.replanning.plan_on",
        "medley.run.replanning.stepper",
        "medley.run.replanning.Subject",
        "medley.run.replanning.text_of_subject",
        "medley.run.replanning.subject_of_text",
        "medley.run.beside.Beside",
        "medley.capture.model_name.load",
        "medley.adapters.with_lora",
        "medley.quantized.with_4bit",
    ],
    "The command line": [
        "medley.cli.verb.Verb",
        "medley.cli.verb.verb_of",
        "medley.cli.verb.print_next",
        "medley.cli.verb.progress",
        "medley.cli.verb.wrapped",
        "medley.cli.core.ask",
        "medley.cli.core.command_of_core",
        "medley.cli.core.simplified_graph",
    ],
    "Capture without values": [
        "medley.capture.capture_full",
        "medley.capture.Capture",
        "medley.capture.CaptureError",
        "medley.capture.weightless.load",
        "medley.capture.weightless.shaped",
        "medley.capture.batch.read_batch",
        "medley.capture.batch.Batch",
        "medley.custom_ops.experts",
    ],
    "Runs of several processes": [
        "medley.metrics.scalars_of",
        "medley.fit.fit",
        "medley.fit.Settings",
        "medley.fit.Fitted",
        "medley.fit.expect_no_checkpoint",
        "medley.run.exchange.join",
        "medley.run.exchange.largest",
        "medley.run.job.emulation",
        "medley.run.exchange.from_first",
        "medley.run.exchange.texts",
        "medley.run.exchange.values",
        "medley.run.exchange.store",
        "medley.run.exchange.check",
        "medley.run.exchange.new_key",
        "medley.run.patience.Patience",
        "medley.run.patience.say",
        "medley.run.job.current",
        "medley.run.job.Job",
        "medley.run.job.joins_later",
        "medley.run.job.launched_plan",
        "medley.run.job.device_name",
        "medley.run.job.emulated",
        "medley.run.job.backend",
        "medley.run.job.master",
        "medley.run.job.interface",
        "medley.run.job.interface_towards",
        "medley.run.job.addresses",
        "medley.run.launch.serve_store",
        "medley.run.launch.launch",
        "medley.run.launch.Elastic",
        "medley.run.launch.Place",
        "medley.run.supervisor.Device",
        "medley.run.nodes.nodes_of",
        "medley.run.threads.can_start",
    ],
    "Devices here": [
        "medley.run.accelerators.find",
        "medley.run.accelerators.Found",
        "medley.run.accelerators.no_kernels",
        "medley.profiling.profiler.wanted_ops",
        "medley.profiling.profiler.Profiler",
        "medley.profiling.profiler.Truth",
        "medley.profiling.profiler.Outcome",
        "medley.profiling.link_times.Links",
        "medley.profiling.link_times.own_device",
        "medley.profiling.link_times.window_here",
    ],
}
BELOW = """# Modules

These names are for packages above Medley, such as those of `python/medley_extras`. They import no
other names (`scripts/check_python.py`). Example: `from medley.cluster import load_cluster`.
"""
HEAD = """# API reference

The names of `import medley`. `scripts/api_reference.py` writes this page from docstrings.
Sizes are in bytes and times in seconds, unless the name gives another unit. Invalid
input raises `ValueError`, a failed file or network `OSError`, a defect of Medley `RuntimeError`.
Each message names the place, the value found and the value expected. `StrPath` is
`str | os.PathLike[str]`.
"""
# Classes with fields for users and methods for the trainer. Subclasses list only their own fields.
DESCRIPTIONS = ("optimizer.Optimizer",)
# Members for Medley itself: objects of the core, and the arguments that make them.
INTERNAL = {"arguments", "core", "numbers", "of", "pictures", "program", "programs"}
FIELD = re.compile(r"((?:^    # .*\n)*)^    (\w+): [^#\n]*(?:# (.*))?$", re.M)


def brief(type_: Any) -> str:
    """Returns the text of a type with the short name of the type of paths (HEAD)."""
    return re.sub(r"str \| os\.PathLike(\[str\])?", "StrPath", str(type_))


def signature(name: str, what: Any) -> str:
    """Returns the call as Python code, with one argument per line if it is long."""
    native = getattr(what, "__nb_signature__", None)  # set by extension modules
    if native:
        arguments = native[0][0].split("(", 1)[1].removeprefix("self, ").removeprefix("self")
        return brief(f"{name}({arguments}".replace("medley._core.", ""))
    shown = inspect.signature(what)
    arguments: list[str] = []
    for each in shown.parameters.values():
        if each.kind is each.KEYWORD_ONLY and "*" not in arguments:
            arguments.append("*")
        default = "" if each.default is each.empty else f" = {each.default!r}"
        if each.name != "self":
            type_ = getattr(each.annotation, "__forward_arg__", each.annotation)
            stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
            arguments.append(f"{stars}{each.name}: {brief(type_)}{default}")
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


def filled(text: str) -> str:
    """Returns a text with its paragraphs filled to the width of the page. Code blocks, lists and
    code in a line are not broken."""

    def glued(span: re.Match[str]) -> str:
        return span[0].replace(" ", GLUE) if len(span[0]) < WIDTH else span[0]

    parts = re.sub(r"`[^`]*`", glued, text).split("\n\n")
    return "\n\n".join(
        part if re.search(r"^( |- )", part, re.M) else textwrap.fill(part, WIDTH, **AS_IT_IS)
        for part in parts
    ).replace(GLUE, " ")


def described_by(text: str) -> list[str]:
    """Returns the lines of a docstring, with its example as code."""
    text, _, example = text.partition("\n\nExample:\n")
    return [filled(text), "", *(code(textwrap.dedent(example)) if example else [])]


def code(text: str) -> list[str]:
    return ["```python", text, "```", ""]


def is_native(what: Any) -> bool:
    """Returns whether this is a class of an extension module, made only by its own functions."""
    return inspect.isclass(what) and what.__module__ == "medley._core"


def described(kind: type) -> type | None:
    """Returns the class or its base among DESCRIPTIONS, or None."""
    import medley

    bases = [named(medley, name) for name in DESCRIPTIONS]
    return next((base for base in bases if issubclass(kind, base)), None)


def members(kind: type) -> dict[str, tuple[type, Any]]:
    """Returns the public methods and properties with their classes, own ones first."""
    if described(kind):
        return {}
    found: dict[str, tuple[type, Any]] = {}
    shown = (property, staticmethod, classmethod)
    for base in kind.__mro__:
        if not base.__module__.startswith("medley"):
            continue
        for name, value in vars(base).items():
            is_member = inspect.isfunction(value) or isinstance(value, shown)
            is_member |= hasattr(value, "__nb_signature__")
            if is_member and not name.startswith("_") and name not in INTERNAL:
                found.setdefault(name, (base, value))
    return found


def fields(kind: type) -> list[str]:
    """Returns the table of the fields of a dataclass: name, type with default, comment."""
    if not dataclasses.is_dataclass(kind):
        return []
    comments: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("medley"):
            for above, name, beside in FIELD.findall(inspect.getsource(base)):
                comments[name] = beside or re.sub(r"\s+# ", " ", above).strip(" #\n")
    rows = []
    parent = described(kind)
    known = {} if parent in (kind, None) else getattr(parent, "__dataclass_fields__")  # noqa: B009
    for field in dataclasses.fields(kind):
        is_known = field.name in known and field.default == known[field.name].default
        if is_known or field.name in INTERNAL:
            continue
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        shown = f"{brief(field.type)}{default}".replace("|", "\\|")
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
        return [filled(f"`.{name}`: `{shown}`. {docstring(f'{owner}.{name}', what)}"), ""]
    function = what.__func__ if isinstance(what, (staticmethod, classmethod)) else what
    is_static = function is not what or type(what).__name__ == "nb_func"
    call = signature(f"{owner if is_static else ''}.{name}", function)
    text = docstring(f"{owner}.{name}", function)
    if "\n" in call:
        return [*code(call), filled(text), ""]
    return [filled(f"`{call}`: {text}"), ""]


class Page:
    """The entries of the page. A member of several classes is documented at the first one."""

    def __init__(self) -> None:
        self._classes: dict[type, str] = {}
        self._members: dict[tuple[type, str], str] = {}

    def entry(self, name: str, what: Any) -> list[str]:
        if not inspect.isclass(what):
            line = signature(name, what)
            if "\n" in line or name.count(".") < 2:
                return [f"### {name}", "", *code(line), *text_of(name, what)]
            text = docstring(name, what)
            return described_by(f"`{line}`: {text}")
        table = self._fields(what)
        short = is_native(what) or described(what) or issubclass(what, Exception) or table
        call = [] if short or signature(name, what) == f"{name}()" else code(signature(name, what))
        lines = [f"### {name}", "", *call, *text_of(name, what), *table]
        elsewhere: dict[str, list[str]] = {}
        for each, (base, value) in members(what).items():
            first = self._first_class_of(what, base, each)
            if first:
                elsewhere.setdefault(first, []).append(f"`{each}`")
            else:
                self._members[base, each] = name
                lines += member(name, each, value)
        for first, names in elsewhere.items():
            link = f"[{first}](#{first.lower().replace('.', '')})"
            lines += [textwrap.fill(f"As in {link}: {', '.join(names)}.", WIDTH, **AS_IT_IS), ""]
        self._classes[what] = name
        return lines

    def _fields(self, kind: type) -> list[str]:
        """Returns the table of the fields, or a link to the base that has the same table."""
        table = fields(kind)
        for base in kind.__mro__[1:] if table else ():
            if base in self._classes and fields(base) == table:
                name = self._classes[base]
                return [f"Fields: those of [{name}](#{name.lower()}).", ""]
        return table

    def _first_class_of(self, kind: type, base: type, name: str) -> str | None:
        """Returns the class whose entry documents a member: a base, or one with the same base."""
        above = (self._classes[each] for each in kind.__mro__ if each in self._classes)
        bases = (each for each in above if name in self._names_of(each))
        return self._members.get((base, name)) or next(bases, None)

    def _names_of(self, owner: str) -> set[str]:
        return {name for (_, name), each in self._members.items() if each == owner}


def text_of(name: str, what: Any) -> list[str]:
    return described_by(docstring(name, what))


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
    lines, whole = [HEAD], Page()
    for chapter, names in CHAPTERS.items():
        lines += [f"## {chapter}", ""]
        for name in names:
            lines += whole.entry(name, named(package, name))
    lines.append(BELOW)
    for chapter, names in MODULES.items():
        lines += [f"## {chapter}", ""]
        for name in names:
            module, _, last = name.rpartition(".")
            lines += whole.entry(name, getattr(importlib.import_module(module), last))
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
