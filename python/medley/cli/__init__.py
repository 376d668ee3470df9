"""The command line: verbs of the core, which need no PyTorch, and those of Python."""

from __future__ import annotations

import argparse
import functools
import gc
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import Any

from medley import _core, extras
from medley.cli.core import program
from medley.cli.verb import Verb, verb_of, wrapped
from medley.cluster import catalogue

_CALLERS, _WORLDS = 2, 3
_PACKAGES = ("numpy", "plotly", "rich", "safetensors", "torch")  # as in pyproject.toml
_GROUPS = ("Prepare", "Plan", "Inspect", "Run")  # of verbs, in this order

VERBS = [
    verb_of(
        "medley.cli.capture",
        "capture",
        "Prepare",
        "Capture a model as a graph",
        "medley capture medley_extras.models:gpt --batch 4x32 -o g.graph",
        ends_at_once=True,
    ),
    verb_of(
        "medley.cli.launch",
        "launch",
        "Run",
        "Run a training script, one process per device of a plan",
        "medley launch plan.json train.py --epochs 3",
    ),
]


class _Parser(argparse.ArgumentParser):
    """Reports an invalid command line in one line."""

    def error(self, message: str) -> Any:
        raise ValueError(f"{self.prog}: {message}; see {self.prog} --help")


def _parser_of(verb: Verb) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"medley {verb.name}",
        description=verb.help + ".",
        epilog=f"Example:\n  {verb.example}",
        formatter_class=functools.partial(
            argparse.RawDescriptionHelpFormatter,
            width=min(shutil.get_terminal_size().columns, 100) - 2,
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    if verb.is_of_a_job:
        parser.add_argument(
            "--interface",
            metavar="NAME",
            help="network interface through which processes talk; default: the one to the master",
        )
    verb.prepare(parser)
    return parser


def _all_verbs() -> list[Verb]:
    return [*VERBS, *extras.verbs()]


def _find(name: str, option: str = "") -> Verb | None:
    if (form := extras.form(name, option)) is not None:
        return form
    return next((verb for verb in _all_verbs() if verb.name == name), None)


def _help() -> str:
    rows = [*_core.cli_verbs(), *((verb.name, verb.group, verb.help) for verb in _all_verbs())]
    width = max(len(name) for name, _, _ in rows)
    lines = ""
    for heading in _GROUPS:
        found = [f"  {name:<{width}}  {text}\n" for name, group, text in rows if group == heading]
        lines += f"{heading}:\n{''.join(found)}\n"
    return (
        "Trains one PyTorch model on unequal accelerators.\nUsage: medley [OPTIONS] VERB\n\n"
        f"{lines}"
        "`medley VERB --help` lists the arguments, with an example. Exit codes: 0, 1 a bug of\n"
        "Medley, 2 bad input, 3 the environment."
    )


def _verbs_of_core() -> list[str]:
    return [name for name, _, _ in _core.cli_verbs()]


def run(arguments: Sequence[str]) -> int:
    """Runs a command line without the program name. Returns the exit code. May raise."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else _CALLERS
    known = _verbs_of_core()
    if arguments[0] not in known and (verb := _find(*arguments[:2])) is not None:
        options = _parser_of(verb).parse_args(list(arguments[1:]))
        interface = vars(options).pop("interface", None)
        if interface is not None:
            from medley.run import job

            job.use_interface(interface)
        return verb.run(options)
    if arguments[0] not in known and not arguments[0].startswith("-"):
        names = ", ".join([*known, *(verb.name for verb in _all_verbs())])
        raise ValueError(f"medley: found the verb {arguments[0]!r}, expected one of {names}")
    return _core.run_cli(list(arguments), str(catalogue()))


def command() -> int:
    """The entry point `medley`: main(), or the program of the core for its verbs. The program is
    faster than run_cli(), because it has its own allocator. An interrupt ends it immediately."""
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else ""
    is_of_core = name in _verbs_of_core()
    if is_of_core and (path := program()) is not None:
        extras.before(name, arguments[1:])
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
            signal.signal(ignored, signal.SIG_DFL)
        os.execv(path, [str(path), *arguments])
    verb = None if is_of_core else _find(name)
    ends_at_once = verb is not None and verb.ends_at_once
    if ends_at_once:
        gc.disable()
    code = main()
    if ends_at_once:
        sys.stderr.flush()
        os._exit(code)
    return code


def main() -> int:
    """Runs the command line in this process. Returns the exit code."""
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
        return code
    except SystemExit as leave:  # --help
        return leave.code if isinstance(leave.code, int) else 0
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # `medley ... | head`
        sys.stderr.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ValueError as error:
        return _fail(error, _CALLERS)
    except OSError as error:
        return _fail(error, _WORLDS)
    except ModuleNotFoundError as error:  # missing after `pip install --no-deps`
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        return _fail(f"medley: {package} is missing: pip install {package}", _WORLDS)


def _fail(what: object, code: int) -> int:
    # another function printed it (medley/run/ends.py)
    if not getattr(what, "_medley_said_elsewhere", False):
        shown = f"medley: {what}" if code == 130 else str(what)
        print(wrapped(shown) if sys.stderr.isatty() else shown, file=sys.stderr)
    return code
