"""`medley launch --for PLATFORM`: writes the job that runs a plan under another scheduler."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re

from medley.cli.verb import print_next
from medley.files import write_atomically
from medley_extras.deploy.job import Job, described, label

# The module that writes the job of each platform, and its options among those below.
_WRITERS = {
    "slurm": ("medley_extras.deploy.slurm", {"image", "time-limit", "cpus", "memory"}),
    "kubernetes": (
        "medley_extras.deploy.kubernetes",
        {"image", "time-limit", "cpus", "memory", "storage"},
    ),
    "skypilot": ("medley_extras.deploy.skypilot", {"image", "cpus", "memory", "storage"}),
    "ray": ("medley_extras.deploy.ray_job", {"cpus"}),
}
_SUBMIT = {
    "slurm": ["sbatch"],
    "kubernetes": ["kubectl", "apply", "-f"],
    "skypilot": ["sky", "jobs", "launch"],
    "ray": ["ray", "job", "submit", "--working-dir", ".", "--", "python"],
}
_OPTIONS = ("image", "time-limit", "cpus", "memory", "storage")
_FOLDERS = {"kubernetes": "/checkpoints", "skypilot": "/checkpoints"}  # else "out"


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the form."""
    parser.usage = "medley launch --for PLATFORM PLAN -o FILE [OPTIONS] -- SCRIPT [ARGUMENTS]"
    add = parser.add_argument
    add(
        "--for",
        dest="target",
        nargs="*",
        metavar=("PLATFORM", "PLAN"),
        help=f"{', '.join(_WRITERS)}; and the plan.json to run",
    )
    add("-o", dest="output", metavar="FILE", required=True, help="the file to write")
    add("--cluster", metavar="FILE", help="of the plan; default: the cluster.yaml next to it")
    add("--name", default="medley", help="of the job; default: medley")
    add(
        "--node",
        action="append",
        default=[],
        metavar="POOL:KEY=VALUE",
        help="which machines a pool takes: an option of sbatch, a node label of Kubernetes, a "
        "resource of Ray, a field of SkyPilot's resources; may be repeated",
    )
    add("--checkpoints", metavar="FOLDER", help="that all nodes see, as MEDLEY_CHECKPOINTS")
    add("--storage", help="kubernetes: the volume claim for checkpoints; skypilot: the bucket")
    add("--image", help="container image with Medley; kubernetes needs one")
    add("--cpus", type=int, help="CPUs for each device")
    add("--memory", help="for each node, as the platform writes it: 64G, 64Gi")
    add("--time-limit", metavar="HH:MM:SS", help="limit; default: 4 hours with slurm, else none")
    add(
        "--notice",
        type=int,
        default=120,
        metavar="SECONDS",
        help="from SIGTERM until processes are killed; default: 120",
    )
    add("--port", type=int, default=29500, help="at which processes meet; default: 29500")
    add("--elastic", action="store_true", help="the run resumes without nodes that it loses")
    add("--max-restarts", type=int, default=3, help="of lost processes; default: 3")
    add(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- SCRIPT ...",
        help="a Python script that trains, or `train`: the verb, and its arguments",
    )


def command(arguments: argparse.Namespace) -> int:
    """Writes the job; returns the exit code."""
    if len(arguments.target) != 2:
        raise ValueError(
            f"--for: not a platform and a plan (got {' '.join(arguments.target) or 'nothing'}, "
            "expected two words). Write medley launch --for slurm plan.json -o job.sh -- train.py"
        )
    platform, plan = arguments.target
    if platform not in _WRITERS:
        raise ValueError(
            f"--for: unknown platform (got {platform!r}, expected one of {', '.join(_WRITERS)}). "
            "Write its name first, then the plan."
        )
    module, takes = _WRITERS[platform]
    for name in _OPTIONS:
        found = getattr(arguments, name.replace("-", "_"))
        if name not in takes and found is not None:
            raise ValueError(f"--{name}: not an option of {platform} (got {found}). Leave it out.")
    job = _job(arguments, platform, plan)
    write_atomically(arguments.output, importlib.import_module(module).text(job))
    groups = ", ".join(f"{len(group.nodes)} x {group.pool}" for group in job.groups)
    if arguments.json:
        nodes = {group.name: len(group.nodes) for group in job.groups}
        facts = {"file": arguments.output, "processes": job.processes, "nodes": nodes}
        print(json.dumps(facts))
    else:
        print(f"{arguments.output}: {platform} job of {job.processes} processes on {groups}")
        print_next([*_SUBMIT[platform], arguments.output])
    return 0


def _job(arguments: argparse.Namespace, platform: str, plan: str) -> Job:
    for name, least in (("notice", 1), ("port", 1), ("max-restarts", 0), ("cpus", 1)):
        value = getattr(arguments, name.replace("-", "_"))
        if value is not None and value < least:
            raise ValueError(
                f"--{name}: too small (got {value}, expected {least} or more). Raise it."
            )
    select = _selections(arguments.node)
    text, cluster, cluster_text, groups = described(plan, arguments.cluster, select)
    checkpoints = arguments.checkpoints or _FOLDERS.get(platform, "out")
    return Job(
        name=label(arguments.name),
        plan=plan,
        plan_text=text,
        cluster=cluster,
        cluster_text=cluster_text,
        groups=groups,
        words=_words(arguments.command, platform, cluster, checkpoints),
        checkpoints=checkpoints,
        notice=arguments.notice,
        port=arguments.port,
        elastic=arguments.elastic,
        restarts=arguments.max_restarts,
        time=_seconds(arguments.time_limit),
        image=arguments.image,
        storage=arguments.storage,
        cpus=arguments.cpus,
        memory=arguments.memory,
    )


def _words(given: list[str], platform: str, cluster: str, checkpoints: str) -> list[str]:
    """Returns the words behind `python`: those of a script, or of `medley train`, which gets the
    cluster, the folder for checkpoints and --resume unless they are there."""
    if given[:1] != ["--"] or len(given) < 2:
        raise ValueError(
            f"medley launch --for {platform}: no command (got {' '.join(given) or 'nothing'}, "
            "expected -- SCRIPT ARGUMENTS at the end). Add -- train.py."
        )
    script, *rest = given[1:]
    if script != "train" or os.path.exists(script):
        if platform != "kubernetes" and not os.path.isfile(script):
            raise ValueError(f"{script}: cannot be read (got no such file). Name a script.")
        return [script, *rest]
    where = "/plan/cluster.yaml" if platform == "kubernetes" else cluster
    for option, value in (("--cluster", where), ("--output", checkpoints), ("--resume", "")):
        if not any(word.partition("=")[0] == option for word in rest):
            rest += [option, value] if value else [option]
    return ["-m", "medley", "train", *rest]


def _selections(given: list[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for entry in given:
        pool, _, pair = entry.partition(":")
        key, equals, value = pair.partition("=")
        if not pool or not key or not equals:
            raise ValueError(
                f"--node: not a selection (got {entry!r}, expected POOL:KEY=VALUE). "
                "Write for example fast:partition=a100."
            )
        found.setdefault(pool, {})[key] = value
    return found


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    if not (found := re.fullmatch(r"(\d+):([0-5]\d):([0-5]\d)", text)):
        raise ValueError(
            f"--time-limit: not a time (got {text!r}, expected HH:MM:SS). Write 04:00:00."
        )
    return 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3])
