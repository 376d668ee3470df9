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
        "--heartbeat-timeout",
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
        "--max-restarts",
        type=int,
        help="with --elastic: start lost processes again, so many in all, and wait for them",
    )
    parser.add_argument(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="with --elastic, where the plan has several nodes: the same command runs on each of "
        "them, and they meet at this address of the first one",
    )
    parser.add_argument(
        "--node-rank",
        metavar="N",
        type=int,
        help="with --rdzv-endpoint: which node of the plan this is, in its order; 0, the first, "
        "leads",
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
        "--replicate-every",
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
        default="off",
        help="try other plans during the first steps and keep the fastest one, at the cost of so "
        "many steps; auto: 2 %% of those that are left; default: off",
    )
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
        metrics=None if port is None else f"{arguments.metrics_host}:{port}",
        pace=arguments.pace,
        truth_seed=arguments.truth_seed,
        truth_spread=arguments.truth_spread,
        delay_seed=arguments.delay_seed,
    )
