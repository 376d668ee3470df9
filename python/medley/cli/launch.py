"""The arguments of `medley launch` (medley/run/launch.py)."""

from __future__ import annotations

import argparse

_OF_ELASTIC = {  # options that require --elastic, with their defaults
    "max_restarts": 0,
    "rdzv_endpoint": None,
    "node_rank": 0,
    "settle": 600.0,
    "replicate_every": None,
    "elastic_log": "elastic.jsonl",
}


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.add_argument("plan", help="plan.json; one process is started for each of its devices")
    parser.add_argument(
        "script", help="a Python script that trains, or `train`: the verb, whose arguments follow"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    parser.add_argument(
        "--for",
        dest="platform",
        metavar="PLATFORM",
        help="comes first: write the job of another scheduler; `medley launch --for --help`",
    )
    parser.add_argument("--emulate", metavar="CLUSTER", help="emulate the devices of this file")
    parser.add_argument(
        "--pace",
        type=float,
        default=0.0,
        help="real seconds per emulated second; 0, the default: as fast as possible",
    )
    parser.add_argument(
        "--heartbeat-timeout",
        metavar="SECONDS",
        type=float,
        help="end the run if a process is silent for so long; default: 5; with --elastic: 2",
    )
    parser.add_argument("--elastic", action="store_true", help="resume without lost processes")
    parser.add_argument("--max-restarts", type=int, help="with --elastic: restarts in all")
    parser.add_argument(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="with --elastic on several nodes, each of which runs this command: where they meet",
    )
    parser.add_argument("--node-rank", metavar="N", type=int, help="index of this node; 0 leads")
    parser.add_argument(
        "--settle",
        metavar="SECONDS",
        type=float,
        help="with --elastic: plan again for a returned node or a slow device if that pays within "
        "so many seconds, and not sooner after the last change; default: 600",
    )
    parser.add_argument(
        "--replicate-every",
        metavar="STEPS",
        type=int,
        help="with --elastic: copy what only one node has to another one after so many steps; 0: "
        "never; default: as often as costs 2 %% of the time",
    )
    parser.add_argument(
        "--elastic-log",
        metavar="FILE",
        help="with --elastic: a line for each recovery; default: elastic.jsonl",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="N",
        type=int,
        help="the first process serves metrics of the run as OpenMetrics text; 0: at a free port",
    )
    parser.add_argument(
        "--metrics-host", default="127.0.0.1", help="address for --metrics-port; default: loopback"
    )
    parser.add_argument(
        "--tune",
        metavar="auto|off|STEPS",
        default="auto",
        help="try other plans during the first steps and keep the fastest one, at the cost of so "
        "many steps; auto (default): 2 %% of those that are left",
    )
    parser.add_argument("--no-memory", action="store_true", help="race anew, and keep no result")
    parser.set_defaults(**_OF_ELASTIC)
    parser.add_argument("--truth-seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--truth-spread", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--delay-seed", type=int, default=0, help=argparse.SUPPRESS)


def command(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    from medley.run.launch import Elastic, launch

    if arguments.platform is not None:
        raise ValueError(
            f"--for: not the first option (got {arguments.platform}). Write it first: "
            f"medley launch --for {arguments.platform} {arguments.plan}"
        )
    for name, value in {} if arguments.elastic else _OF_ELASTIC.items():
        if (found := getattr(arguments, name)) != value:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option}: found {found} without --elastic, expected also that")
    given = {name.removeprefix("elastic_"): getattr(arguments, name) for name in _OF_ELASTIC}
    port = arguments.metrics_port
    return launch(
        arguments.plan,
        arguments.script,
        arguments.arguments,
        emulate=arguments.emulate,
        heartbeat_timeout=arguments.heartbeat_timeout,
        elastic=Elastic(**given) if arguments.elastic else None,
        tune=arguments.tune,
        remember=not arguments.no_memory,
        metrics=None if port is None else f"{arguments.metrics_host}:{port}",
        pace=arguments.pace,
        truth_seed=arguments.truth_seed,
        truth_spread=arguments.truth_spread,
        delay_seed=arguments.delay_seed,
    )
