"""The command line: `python -m testbed cluster.yaml -- COMMAND ...`."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from medley.cluster import Cluster, load_cluster
from testbed import inside, quota, ready, requirements
from testbed.layout import Layout, lay_out, quotas, speeds
from testbed.ranks import environments

_EXAMPLE = """example:
  python -m testbed cluster.yaml -- python train.py

One process per device, with the variables of torchrun. Exit codes: that of the first device that
failed; 1 if a device was never ready, 2 for a mistake of the caller, 3 where this machine lacks
something, 124 after --timeout, 130 after Ctrl-C."""
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed",
        usage="python -m testbed [options] cluster.yaml -- COMMAND ...",
        description="Runs a command on a cluster of unequal machines made of this one, real time.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cluster", nargs="?", help="cluster.yaml")
    parser.add_argument("--check", action="store_true", help="say what this machine lacks, if so")
    order = parser.add_mutually_exclusive_group()
    order.add_argument(
        "--plan", help="ranks in the order of this plan's devices; the others run nothing"
    )
    order.add_argument(
        "--devices", help="ranks in the order of these, such as fast/0/0,slow/1/0; likewise"
    )
    parser.add_argument(
        "--when-ready",
        action="store_true",
        help="limit the processors when all devices have called testbed.ready.ready()",
    )
    parser.add_argument(
        "--share", type=float, default=0.6, help="of the cores that all devices get (0.6)"
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds (600)")
    parser.add_argument("--logs", help="keep the output of every device in this folder")
    parser.add_argument("--quiet", action="store_true", help="do not say what was built")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    options.command = arguments[end + 1 :]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    lacking = requirements.missing()
    if lacking:
        for sentence in lacking:
            print(f"testbed: {sentence}", file=sys.stderr)
        return 3
    if options.check:
        delays = "" if requirements.has_delays() else "; latencies are not added (no netem here)"
        print(f"testbed: everything is here{delays}")
        return 0
    if not options.cluster or not options.command:
        print("testbed: expected cluster.yaml -- COMMAND", file=sys.stderr)
        return 2
    try:
        return run(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(error, file=sys.stderr)
        return 3


def run(options: argparse.Namespace) -> int:
    """Builds the cluster, runs the command on it and removes it. Returns the exit code."""
    cluster = load_cluster(options.cluster)
    layout = lay_out(cluster)
    names, said = _ranks(cluster, options)
    numbers = [_number(cluster, name, said) for name in names]
    cores = sorted(os.sched_getaffinity(0))
    amounts = quotas(speeds(cluster), cores, options.share)
    controller = quota.find_controller()
    assert controller is not None  # otherwise requirements.missing() names it
    quota.remove_stale(controller)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_folder())
        logs = Path(options.logs or folder / "logs")
        logs.mkdir(parents=True, exist_ok=True)
        groups = stack.enter_context(_groups(controller, len(names)))
        common = {ready.FOLDER: str(folder)}
        if options.plan is not None:
            common["MEDLEY_PLAN"] = str(Path(options.plan).resolve())
        slots = [
            inside.DeviceSlot(name, device, amounts[device], str(group), {**values, **common})
            for name, device, group, values in zip(
                names,
                numbers,
                groups,
                environments(names, layout.addresses[numbers[0]]),
                strict=True,
            )
        ]
        job = inside.Job(
            layout=layout,
            slots=tuple(slots),
            command=tuple(options.command),
            folder=str(folder),
            logs=str(logs),
            when_ready=options.when_ready,
            delays=requirements.has_delays(),
            timeout=options.timeout,
        )
        if not options.quiet:
            _describe(layout, job)
        return _start(job, folder)


def _ranks(cluster: Cluster, options: argparse.Namespace) -> tuple[list[str], str]:
    """Returns the devices in the order of the ranks, and the source of that order."""
    if options.plan is not None:
        from medley.plan import Plan  # loads PyTorch

        return Plan.load(options.plan).devices, options.plan
    names = list(cluster.devices) if options.devices is None else options.devices.split(",")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"--devices: found {twice[0]} twice, expected every device at most once")
    return names, "--devices"


def _number(cluster: Cluster, name: str, said: str) -> int:
    number = cluster.find(name)
    if number is None:
        raise ValueError(f"{said}: found device {name}, expected one of the cluster")
    return number


def _describe(layout: Layout, job: inside.Job) -> None:
    for slot in job.slots:
        amount = slot.quota
        print(
            f"testbed: {slot.name}: {amount.quota_us / 1e3:g} ms of every "
            f"{amount.period_us / 1e3:g} ms on core {amount.core}, {layout.addresses[slot.device]}",
            file=sys.stderr,
        )
    for note in layout.notes:
        print(f"testbed: {note}", file=sys.stderr)


def _start(job: inside.Job, folder: Path) -> int:
    path = folder / "job.json"
    path.write_text(inside.to_json(job))
    root = str(Path(__file__).resolve().parent.parent)
    inner = subprocess.Popen(
        [*requirements.UNSHARE, sys.executable, "-m", "testbed.inside", str(path)],
        stdin=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *_python_path()])},
        # If this process is killed, `unshare` is, and with it all that runs in its namespaces.
        preexec_fn=lambda: ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL),
    )
    assert inner.stdin is not None

    def stop(number: int, frame: object) -> None:
        assert inner.stdin is not None
        inner.stdin.close()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = inner.wait(timeout=job.timeout + 60)
    except subprocess.TimeoutExpired:
        code = 124
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        inner.kill()
        inner.wait()
    return code if code >= 0 else 128 - code


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


@contextlib.contextmanager
def _groups(controller: quota.Controller, count: int) -> Iterator[list[Path]]:
    groups = quota.create(controller, count)
    try:
        yield groups
    finally:
        for group in groups:
            quota.remove(group)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Makes a folder for this run, and removes those of killed runs."""
    parent = Path(tempfile.gettempdir())
    for entry in parent.iterdir():
        if quota.is_stale(entry.name):
            shutil.rmtree(entry, ignore_errors=True)
    folder = parent / f"medley-{quota.owner()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
