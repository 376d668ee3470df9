"""The command line: verbs of the core, which need no PyTorch, and those of Python."""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medley import _core, extras
from medley.cli.core import program
from medley.cli.verb import Verb, progress
from medley.cluster import catalogue
from medley.files import write_atomically

_CALLERS, _WORLDS = 2, 3
_PACKAGES = ("numpy", "plotly", "rich", "safetensors", "torch")  # of pyproject.toml


# --- capture --------------------------------------------------------------------------------------


def _prepare_capture(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="package.module:function that returns (model, example batch), hf:config.json or "
        "hf:mixtral; arguments behind a ?: medley_extras.models:bert?size=base&layers=48",
    )
    parser.add_argument("--batch", metavar="ROWSxLENGTH", help="size of the example batch: 4x128")
    parser.add_argument(
        "--autocast", action="store_true", help="matrix products in bf16, weights as they are"
    )
    parser.add_argument(
        "--lora",
        metavar="r=16,targets=q_proj,v_proj",
        help="train adapters of the package peft in place of the weights, which are frozen",
    )
    parser.add_argument(
        "--bits",
        type=int,
        choices=[4],
        help="weights of 4 bits as bitsandbytes packs them; with --lora, this is QLoRA",
    )
    parser.add_argument("-o", "--output", required=True, help="write the graph here: g.graph")


def _capture(arguments: argparse.Namespace) -> int:
    sys.path.insert(0, os.getcwd())
    import torch
    from torch import nn

    from medley.adapters import with_lora
    from medley.capture import model_name, weightless
    from medley.graph import capture
    from medley.quantized import with_4bit

    size = _read_batch(arguments.batch)

    def make() -> tuple[nn.Module, Any]:
        made, example = model_name.load(arguments.model, size)
        made = with_4bit(made) if arguments.bits else made
        return (with_lora(made, arguments.lora) if arguments.lora else made), example

    model, batch = weightless.load(make)
    with progress("capturing", arguments.json), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the graph is not checked")  # a line says it
        graph = capture(model, batch, autocast=torch.bfloat16 if arguments.autocast else None)
    text = graph.text()
    write_atomically(arguments.output, text)
    rows = {
        "graph": arguments.output,
        "ops": graph.core.num_ops,
        "parameters": len(graph.core.parameter_names),
        "hash": graph.hash(),
        "row_coupling": _core.row_coupling(graph.core),
        "unchecked": graph.unchecked,
    }
    if arguments.json:
        print(json.dumps(rows))
        return 0
    print(f"{rows['graph']}: {rows['ops']} ops, {rows['parameters']} parameters")
    if rows["row_coupling"]:
        print(f"{rows['row_coupling']}: plans have one micro-batch")
    if rows["unchecked"]:
        print(f"not checked: {rows['unchecked']}")
    return 0


def _read_batch(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    rows, _, length = text.partition("x")
    if not (rows.isdigit() and length.isdigit() and int(rows) > 0 and int(length) > 0):
        raise ValueError(f"--batch: found {text}, expected ROWSxLENGTH such as 4x128")
    return int(rows), int(length)


# --- launch ---------------------------------------------------------------------------------------


_OF_ELASTIC = {  # options of --elastic alone, and what they are if not given
    "restarts": 0,
    "meet": None,
    "node_rank": 0,
    "settle": 600.0,
    "second_homes_every": None,
    "elastic_log": "elastic.jsonl",
}


def _prepare_launch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", help="plan.json; one process is started for each of its devices")
    parser.add_argument(
        "script", help="a Python script that trains, or `train`: the verb, whose arguments follow"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    parser.add_argument(
        "--emulate",
        metavar="CLUSTER",
        help="take times, links and memory from this cluster.yaml instead of from this machine",
    )
    parser.add_argument(
        "--pace",
        type=float,
        default=0.0,
        help="real seconds per emulated second; 0, the default: as fast as possible",
    )
    parser.add_argument(
        "--dead-after",
        metavar="SECONDS",
        type=float,
        help="end the run if a process gives no sign of life for so long; default: 5; with "
        "--elastic the others go on then; default: 2",
    )
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="if a process is killed or goes silent, the others go on without it, with a new plan",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        help="with --elastic: start lost processes again, so many in all, and wait for them",
    )
    parser.add_argument(
        "--meet",
        metavar="HOST:PORT",
        help="with --elastic, where the plan has several nodes: the same command runs on each of "
        "them, and they meet at this address of the first one",
    )
    parser.add_argument(
        "--node-rank",
        metavar="N",
        type=int,
        help="with --meet: which node of the plan this is, in its order; 0, the first, leads",
    )
    parser.add_argument(
        "--settle",
        metavar="SECONDS",
        type=float,
        help="with --elastic: a node that comes back is used, and a device that has become slow is "
        "planned for, if that pays in so many seconds, and not sooner after the last such change; "
        "default: 600",
    )
    parser.add_argument(
        "--second-homes-every",
        metavar="STEPS",
        type=int,
        help="with --elastic: copy what only one node has to another one after so many steps; 0: "
        "never; default: as often as costs 2 %% of the time",
    )
    parser.add_argument(
        "--elastic-log",
        metavar="FILE",
        help="with --elastic: where each recovery is noted, a line each; default: elastic.jsonl",
    )
    parser.set_defaults(**_OF_ELASTIC)
    parser.add_argument("--truth-seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--truth-spread", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--delay-seed", type=int, default=0, help=argparse.SUPPRESS)


def _launch(arguments: argparse.Namespace) -> int:
    from medley.run.launch import launch

    for name, value in {} if arguments.elastic else _OF_ELASTIC.items():
        if (found := getattr(arguments, name)) != value:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option}: found {found} without --elastic, expected also that")
    return launch(
        arguments.plan,
        arguments.script,
        arguments.arguments,
        emulate=arguments.emulate,
        dead_after=arguments.dead_after,
        elastic=(
            {
                "log": arguments.elastic_log,
                "restarts": arguments.restarts,
                "meet": arguments.meet,
                "node_rank": arguments.node_rank,
                "settle": arguments.settle,
                "second_homes_every": arguments.second_homes_every,
            }
            if arguments.elastic
            else None
        ),
        pace=arguments.pace,
        truth_seed=arguments.truth_seed,
        truth_spread=arguments.truth_spread,
        delay_seed=arguments.delay_seed,
    )


# --- probe and profile ----------------------------------------------------------------------------


def _prepare_probe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", default="cluster.yaml", help="write the cluster here")


def _probe(arguments: argparse.Namespace) -> int:
    from medley.profiling.probe import probe

    return probe(Path(arguments.output), arguments.json)


def _prepare_profile(parser: argparse.ArgumentParser) -> None:
    from medley.profiling.profile import prepare

    prepare(parser)


def _profile(arguments: argparse.Namespace) -> int:
    sys.path.insert(0, os.getcwd())
    from medley.profiling.profile import command

    return command(arguments)


VERBS = [
    Verb(
        "capture",
        "Capture a model as a graph",
        "medley capture medley_extras.models:gpt --batch 4x32 -o g.graph",
        _prepare_capture,
        _capture,
        ends_at_once=True,
    ),
    Verb(
        "probe",
        "Measure the devices here and the links between them, as a cluster.yaml",
        "medley probe -o cluster.yaml",
        _prepare_probe,
        _probe,
        is_of_a_job=True,
    ),
    Verb(
        "profile",
        "Measure what the ops and collectives of a model take on the devices of a cluster",
        "medley profile g.graph cluster.yaml --global-batch 64 -o profile.json",
        _prepare_profile,
        _profile,
        is_of_a_job=True,
    ),
    Verb(
        "launch",
        "Run a training script, one process per device of a plan",
        "medley launch plan.json train.py --epochs 3",
        _prepare_launch,
        _launch,
    ),
]


# --- all verbs ------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one sentence."""

    def error(self, message: str) -> Any:
        raise ValueError(f"{self.prog}: {message}; see {self.prog} --help")


def _parser_of(verb: Verb) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"medley {verb.name}",
        description=verb.help + ".",
        epilog=f"Example:\n  {verb.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
    """Returns the verbs of Python."""
    return [*VERBS, *extras.verbs()]


def _find(name: str) -> Verb | None:
    return next((verb for verb in _all_verbs() if verb.name == name), None)


def _help() -> str:
    rows = [*_core.cli_verbs(), *((verb.name, verb.help) for verb in _all_verbs())]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows]
    return "\n".join(
        [
            "Trains one PyTorch model on unequal accelerators.",
            "",
            "usage: medley VERB [ARGUMENTS]",
            "",
            *lines,
            "",
            "`medley VERB --help` says more, with an example. Exit codes: 0, 1 a bug of Medley,",
            "2 bad input, 3 the environment.",
        ]
    )


def run(arguments: Sequence[str]) -> int:
    """Runs a command line without the name of the program; returns the exit code. May raise."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else _CALLERS
    known = [name for name, _ in _core.cli_verbs()]
    if arguments[0] not in known and (verb := _find(arguments[0])) is not None:
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
    """The entry point `medley`: main(), or for a verb of the core the program beside this package.

    The program is faster than run_cli() (an allocator of its own), and an interrupt ends it at
    once.
    """
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else ""
    is_of_core = name in dict(_core.cli_verbs())
    if is_of_core and (path := program()) is not None:
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
    """Runs the command line in this process; returns the exit code."""
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
    except ModuleNotFoundError as error:  # what `pip install --no-deps` leaves out
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        return _fail(f"medley: {package} is missing: pip install {package}", _WORLDS)


def _fail(what: object, code: int) -> int:
    if not getattr(what, "_medley_said_elsewhere", False):  # by another (medley/run/ends.py)
        print(f"medley: {what}" if code == 130 else str(what), file=sys.stderr)
    return code
