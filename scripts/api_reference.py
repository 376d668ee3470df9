"""Writes docs/api.md, the reference of `import medley` and of modules for packages above it, from
signatures and docstrings.

Of a dataclass also the fields, each with the comment beside it. Fails if anything public has no
docstring. --check fails if the page is not what would be written.
"""

import argparse
import dataclasses
import importlib
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
# Of modules, for packages above: by the name under which they are imported.
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
        "medley.capture.model_name.load",
        "medley.adapters.with_lora",
        "medley.quantized.with_4bit",
    ],
    "The command line": [
        "medley.cli.verb.Verb",
        "medley.cli.verb.verb_of",
        "medley.cli.verb.progress",
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
        "medley.fit.fit",
        "medley.fit.Settings",
        "medley.fit.Fitted",
        "medley.fit.expect_no_checkpoint",
        "medley.run.exchange.join",
        "medley.run.exchange.from_first",
        "medley.run.exchange.texts",
        "medley.run.exchange.values",
        "medley.run.job.current",
        "medley.run.job.Job",
        "medley.run.job.joins_later",
        "medley.run.job.launched_plan",
        "medley.run.job.device_name",
        "medley.run.job.emulated",
        "medley.run.job.master",
        "medley.run.job.interface",
        "medley.run.job.interface_towards",
        "medley.run.job.addresses",
        "medley.run.launch.serve_store",
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
    ],
}
BELOW = """# Modules

These are for packages above Medley, such as those of `python/medley_extras`, which import nothing
else of it (`scripts/check_python.py`): `from medley.cluster import load_cluster`.
"""
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
            type_ = getattr(each.annotation, "__forward_arg__", each.annotation)
            stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
            arguments.append(f"{stars}{each.name}: {type_}{default}")
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
    short = is_native(what) or (
        inspect.isclass(what) and (described(what) or issubclass(what, Exception))
    )
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
    lines.append(BELOW)
    for chapter, names in MODULES.items():
        lines += [f"## {chapter}", ""]
        for name in names:
            module, _, last = name.rpartition(".")
            lines += entry(name, getattr(importlib.import_module(module), last))
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
