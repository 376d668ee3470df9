"""Jobs that `medley launch --for` writes, run with stand-ins for what starts processes there."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import medley
from medley.cli import run as medley_command
from medley.run.launch import free_port

sys.path.insert(0, str(Path(__file__).parent))
import deployed
from exactness import double_precision

pytestmark = [pytest.mark.multi]

SCRIPT = str(Path(__file__).with_name("deployed.py"))
STEPS = 4
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 2, device: CPU, devices_per_node: 2}
  - {name: slow, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}
  - {name: lan, connects: [fast, slow], bandwidth: 25 Gbit/s, latency: 20 us}
devices:
  half: {based_on: CPU, speed: 0.5}
"""
# Not in the order of the cluster: slow/0/0 has rank 1.
DEVICES = ["fast/1/0", "slow/0/0", "fast/1/1", "fast/0/0"]
LENGTHS = [3, 1, 2, 2]
# sbatch runs the script in an allocation; srun starts the tasks of all its components, numbered
# over components, and returns the largest exit code.
SBATCH = """
import os, re, sys
text = open(sys.argv[1]).read()
for i, part in enumerate(text.split("#SBATCH hetjob")):
    for name in ("nodes", "ntasks-per-node"):
        os.environ[f"COMPONENT_{name}_{i}"] = re.search(rf"#SBATCH --{name}=(\\d+)", part)[1]
    os.environ[f"SLURM_JOB_NODELIST_HET_GROUP_{i}"] = "here"
os.environ.update(SLURM_HET_SIZE=str(i + 1), SLURM_JOB_ID=str(os.getpid()))
if not i:
    os.environ["SLURM_JOB_NODELIST"] = os.environ.pop("SLURM_JOB_NODELIST_HET_GROUP_0")
os.execvp("bash", ["bash", sys.argv[1]])
"""
SRUN = """
import os, re, subprocess, sys
options = [word for word in sys.argv[1:9] if word.startswith("--")]
groups = [word for word in options if word.startswith("--het-group=")]
last = int(os.environ["SLURM_HET_SIZE"]) - 1
assert groups == ([f"--het-group=0-{last}"] if last else []), groups
command = sys.argv[1 + len(options):]
tasks = []
for group in range(last + 1):
    nodes = int(os.environ[f"COMPONENT_nodes_{group}"])
    each = int(os.environ[f"COMPONENT_ntasks-per-node_{group}"])
    for node in range(nodes):
        for local in range(each):
            place = dict(PROCID=len(tasks), LOCALID=local, NODEID=node, NTASKS=nodes * each)
            place = {f"SLURM_{name}": str(value) for name, value in place.items()}
            tasks.append(subprocess.Popen(command, env={**os.environ, **place}))
codes = [task.wait() for task in tasks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""
SCONTROL = """
import sys
print("requeued" if sys.argv[1] == "requeue" else "127.0.0.1")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the plan, its cluster and the graph, and `expected`: what threads of one process see."""
    folder = tmp_path_factory.mktemp("deployed")
    (folder / "cluster.yaml").write_text(CLUSTER)
    mesh = {"axes": ["x"], "shape": [len(DEVICES)], "devices": DEVICES}
    rows = {"rows": deployed.ROWS, "lengths": LENGTHS}
    pipeline = {"microbatches": [rows], "stages": [{"mesh": mesh}]}
    plan = {"format": "medley-plan", "version": 1, "global_batch": deployed.ROWS}
    (folder / "plan.json").write_text(json.dumps({**plan, "pipelines": [pipeline]}))
    model, batch = deployed.make()
    with double_precision():
        text = medley.capture(model, batch).text()
    (folder / "model.graph").write_text(text)
    torch.save(deployed.train(folder, STEPS, local=True), folder / "expected.pt")
    return folder


def distance(folder: Path) -> float:
    """Returns how far a job is from the threads, relative to the largest element."""
    found, expected = (torch.load(folder / name) for name in ("seen.pt", "expected.pt"))
    pairs = zip(found["losses"], expected["losses"], strict=True)
    worst = max(abs(a - b) / abs(b) for a, b in pairs)
    for name, value in expected["state"].items():
        difference = (found["state"][name] - value).abs().max()
        worst = max(worst, float(difference / value.abs().max()))
    return worst


def places(folder: Path) -> list[list[str]]:
    """Returns rank, number on the node and device of each process, by rank."""
    return sorted(line.split() for line in (folder / "places").read_text().splitlines())


def write(folder: Path, platform: str, file: str, *options: str, pause: float = 0.0) -> Path:
    """Writes a job, and removes the results of the last one."""
    for name in ("seen.pt", "places", "trains"):
        (folder / name).unlink(missing_ok=True)
    script = ["--", SCRIPT, str(folder), str(STEPS), str(pause)]
    plan = str(folder / "plan.json")
    out = str(folder / file)
    assert medley_command(["launch", "--for", platform, plan, "-o", out, *options, *script]) == 0
    return folder / file


def environment(tools: Path, **scripts: str) -> dict[str, str]:
    """Returns an environment in which these programs are found first."""
    tools.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (tools / name).write_text(f"#!{sys.executable}\n{text}")
        (tools / name).chmod(0o755)
    path = [str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]
    packages = [str(Path(medley.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join(packages),
        "OMP_NUM_THREADS": "1",
    }


def run(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(command, text=True, capture_output=True, timeout=300, check=False, **more)


# The order of groups is that of their first ranks; local ranks are places on a node of the plan.
EXPECTED = [["0", "0", "fast/1/0"], ["1", "0", "slow/0/0"], ["2", "1", "fast/1/1"]]
EXPECTED += [["3", "0", "fast/0/0"]]


@pytest.mark.parametrize("elastic", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_slurm_job_trains_like_threads(folder: Path, tmp_path: Path, elastic: bool) -> None:
    options = ["--elastic", "--checkpoints", str(tmp_path)] if elastic else []
    job = write(folder, "slurm", "job.sh", *options)
    # Nodes of two devices and of one are different components.
    assert job.read_text().count("#SBATCH hetjob") == 2
    tools = environment(tmp_path / "bin", sbatch=SBATCH, srun=SRUN, scontrol=SCONTROL)
    done = run([str(tmp_path / "bin" / "sbatch"), str(job)], env=tools, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "attempt" not in done.stderr
    assert places(folder) == EXPECTED
    assert distance(folder) < 1e-10


def run_places(commands: list[tuple[list[str], dict[str, str]]], folder: Path) -> None:
    """Starts what each machine starts, and requires that all end well."""
    started = [
        subprocess.Popen(command, env=values, cwd=folder, stderr=subprocess.PIPE, text=True)
        for command, values in commands
    ]
    errors = [each.communicate(timeout=300)[1] for each in started]
    assert [each.returncode for each in started] == [0] * len(started), errors


@pytest.mark.parametrize(
    ("platform", "options"),
    [
        pytest.param("kubernetes", [], marks=pytest.mark.nightly),
        pytest.param("kubernetes", ["--elastic"], marks=pytest.mark.nightly),
        pytest.param("skypilot", [], marks=pytest.mark.nightly),
    ],
)
def test_started_machines_train_like_threads(
    folder: Path, tmp_path: Path, platform: str, options: list[str]
) -> None:
    image = ["--image", "medley:1", "--checkpoints", str(tmp_path)]
    job = write(folder, platform, "job.yaml", *image, *options)
    meet = f"127.0.0.1:{free_port()}"
    base = environment(tmp_path / "bin")
    commands = []
    for document in yaml.safe_load_all(job.read_text()):
        if document.get("kind") == "Job":
            pod = document["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            given = {each["name"]: each["value"] for each in container["env"]}
            given |= {"MEET": meet, "PLAN": str(folder / "plan.json")}
            words = [*container["command"], *container["args"]]
            commands += [
                (words, {**base, **given, "JOB_COMPLETION_INDEX": str(index)})
                for index in range(document["spec"]["completions"])
            ]
        elif "run" in document:
            text = re.sub(r'MEET="[^"]*"', f'MEET="{meet}"', document["run"])
            commands += [
                (
                    ["bash", "-c", text],
                    {**base, **document["envs"], "SKYPILOT_NODE_RANK": str(rank)},
                )
                for rank in range(document["num_nodes"])
            ]
    assert len(commands) == 3
    run_places(commands, folder)
    assert places(folder) == EXPECTED
    assert distance(folder) < 1e-10


def ray_site() -> str:
    """Returns the folder of Ray; skips the test without it."""
    nightly = str(Path(sys.prefix, "deploy"))
    found = importlib.util.find_spec("ray") or PathFinder.find_spec("ray", [nightly])
    if found is None or found.origin is None:
        pytest.skip("needs ray (requirements-deploy.txt)")
    return str(Path(found.origin).parents[1])


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[dict[str, str]]:
    """Is an environment in which the programs of Ray find a cluster of three machines, two of them
    of the pool "fast"."""
    # Behind all other packages, so that those of this environment win.
    site = ray_site()
    values = environment(Path(tempfile.mkdtemp()))
    values["PYTHONPATH"] = os.pathsep.join([values["PYTHONPATH"], site])
    values |= {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    code = """
import json, sys, time
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"fast": 1}})
cluster.add_node(num_cpus=2, resources={"fast": 1})
cluster.add_node(num_cpus=1, resources={"slow": 1})
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
    words = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, env=values, text=True, **pipes) as process:  # type: ignore[call-overload]
        for line in process.stdout:
            if line.startswith("address "):
                break
        yield {**values, "RAY_ADDRESS": line.split()[1]}
        process.stdin.close()


def process_of(device: str, folder: Path) -> tuple[int, int]:
    """Returns the process of a device and its parent, which Ray or `medley launch` has started."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            values = (process / "environ").read_bytes().split(b"\0")
            if str(folder).encode() in command and f"MEDLEY_DEVICE={device}".encode() in values:
                status = (process / "status").read_text()
                return int(process.name), int(re.findall(r"^PPid:\s*(\d+)", status, re.M)[0])
        except OSError:  # it has ended
            continue
    raise AssertionError(f"no process of {device}")


def job_of_ray(folder: Path, *options: str, pause: float = 0.0) -> list[str]:
    job = write(folder, "ray", "job.py", *options, pause=pause)
    return [sys.executable, str(job)]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("options", [[], ["--elastic"]])
def test_a_ray_job_trains_like_threads(
    folder: Path, ray_cluster: dict[str, str], tmp_path: Path, options: list[str]
) -> None:
    job = job_of_ray(folder, "--checkpoints", str(tmp_path), *options)
    done = run(job, env=ray_cluster, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert places(folder) == EXPECTED
    assert distance(folder) < 1e-10


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("options", [["--elastic"], []])
def test_a_ray_worker_that_is_killed_comes_back(
    folder: Path, ray_cluster: dict[str, str], tmp_path: Path, options: list[str]
) -> None:
    command = job_of_ray(folder, "--checkpoints", str(tmp_path), *options, pause=1.0)
    with subprocess.Popen(
        command, env=ray_cluster, cwd=folder, text=True, stderr=subprocess.PIPE
    ) as job:
        while not (folder / "trains").exists():
            assert job.poll() is None
            time.sleep(0.1)
        os.kill(process_of("slow/0/0", folder)[1], signal.SIGKILL)
        _, errors = job.communicate(timeout=200)
    assert job.returncode == 0, errors
    if options:  # the killed process is a member of the next epoch
        (recovery,) = [json.loads(line) for line in (tmp_path / "elastic.jsonl").open()]
        assert recovery["lost"] == [] and "slow/0/0" in recovery["members"]
        assert places(folder) == sorted([*EXPECTED, EXPECTED[1]])
    else:  # all are started again
        assert places(folder) == sorted(2 * EXPECTED)
    assert distance(folder) < 1e-10


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("device", ["slow/0/0", "fast/1/0"])  # another; the one that serves
def test_metrics_count_losses_and_recoveries(folder: Path, tmp_path: Path, device: str) -> None:
    pytest.importorskip("prometheus_client", reason="needs requirements-all.txt")
    write(folder, "slurm", "job.sh")
    port = free_port()
    words = ["launch", "--elastic", "--elastic-log", str(tmp_path / "log"), "--metrics-port"]
    words += [str(port), str(folder / "plan.json"), SCRIPT, str(folder), "12", "0.5"]
    found = ""
    with subprocess.Popen([sys.executable, "-m", "medley", *words], cwd=folder) as job:
        while not (folder / "trains").exists():
            assert job.poll() is None
            time.sleep(0.1)
        os.kill(process_of(device, folder)[0], signal.SIGKILL)
        while "medley_recoveries_total 1.0" not in found:
            assert job.poll() is None
            time.sleep(0.1)
            with contextlib.suppress(OSError):
                url = f"http://127.0.0.1:{port}/metrics"
                with urllib.request.urlopen(url, timeout=10) as answer:
                    found = answer.read().decode()
        job.wait(120)
    assert job.returncode == 0
    assert "medley_devices_lost_total 1.0" in found and "medley_devices 3.0" in found
