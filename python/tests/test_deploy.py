"""Jobs that `medley launch --for` writes: their parts, their schemas, and what is refused."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")

from medley import cli
from medley_extras.deploy.job import groups_of
from medley_extras.deploy.skypilot import accelerator

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: new, count: 2, device: A100-80GB, devices_per_node: 4}
  - {name: Old_1, count: 1, device: mine, devices_per_node: 2, preemptible: true}
  - {name: host, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [new, Old_1, host], bandwidth: 25 Gbit/s, latency: 20 us}
  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}
devices:
  mine: {speed: 0.5, based_on: V100-16GB}
  half:
    memory: 8 GiB
    based_on: CPU
"""
DEVICES = [f"new/{node}/{device}" for node in (0, 1) for device in range(4)]
DEVICES += ["Old_1/0/0", "Old_1/0/1", "host/0/0"]
PLATFORMS = ["slurm", "kubernetes", "skypilot", "ray"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Is the current folder, with a plan, its cluster and a script."""
    mesh = {"axes": ["x"], "shape": [len(DEVICES)], "devices": DEVICES}
    pipeline = {"microbatches": [{"rows": 22}], "stages": [{"mesh": mesh}]}
    plan = {"format": "medley-plan", "version": 1, "global_batch": 22, "pipelines": [pipeline]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(platform: str, *options: str, words: tuple[str, ...] = ("train.py",)) -> str:
    """Returns the job of plan.json."""
    image = ["--image", "medley:1"] if platform == "kubernetes" else []
    target = ["launch", "--for", platform, "plan.json", "-o", "job"]
    assert cli.run([*target, *image, *options, "--", *words]) == 0
    return Path("job").read_text()


def documents(platform: str, *options: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(write(platform, *options)))


def linter(name: str) -> str:
    """Returns the path of a linter; skips the test if it is not installed."""
    path = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if path is None:
        pytest.skip(f"needs {name} (requirements-all.txt)")
    return path


def test_groups_begin_with_rank_0_and_have_equal_nodes() -> None:
    found = groups_of(["b/1/0", "a/0/0", "b/0/0", "b/1/1", "b/2/0", "a/0/1"])
    ranks = [(group.name, group.first, [node.rank for node in group.nodes]) for group in found]
    assert ranks == [("b-2", 0, [0]), ("a", 1, [1]), ("b-1", 2, [2, 3])]
    assert [node.devices for node in found[0].nodes] == [["b/1/0", "b/1/1"]]
    assert [group.name for group in groups_of(["a.b/0/0", "a_b/0/0"])] == ["a-b", "a-bx"]


def test_a_slurm_job_has_a_component_for_each_kind_of_node(folder: Path) -> None:
    text = write("slurm", "--node", "new:partition=a100", "--time-limit", "01:30:00", "--cpus", "4")
    subprocess.run([linter("shellcheck"), "job"], check=True)
    first, second, third = text.split("#SBATCH hetjob")
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n" in first
    assert "--gres=gpu:4" in first and "--partition=a100" in first and "--constraint" not in first
    assert "--gres=gpu:2" in second and "--constraint=Old_1" in second
    assert "--gres" not in third and "--time=01:30:00" in third and "--signal=TERM@120" in third
    assert "--het-group=0-2" in text and '--task "$SLURM_PROCID"' in text
    text = write("slurm", "--elastic", "--cpus", "4")
    assert '--node "$SLURM_PROCID" --elastic' in text and "--cpus-per-task=16" in text
    subprocess.run([linter("shellcheck"), "job"], check=True)


@pytest.mark.parametrize("options", [[], ["--elastic", "--cpus", "4", "--memory", "64Gi"]])
def test_a_kubernetes_job_fits_the_official_schemas(folder: Path, options: list[str]) -> None:
    plan, service, *jobs = documents("kubernetes", *options, "--time-limit", "00:10:00")
    subprocess.run([linter("kubernetes-validate"), "--strict", "job"], check=True)
    assert yaml.safe_load(plan["data"]["plan.json"])["global_batch"] == 22
    assert [job["spec"]["completions"] for job in jobs] == [2, 1, 1]
    pods = [job["spec"]["template"]["spec"] for job in jobs]
    limits = [pod["containers"][0]["resources"].get("limits", {}) for pod in pods]
    assert [each.get("nvidia.com/gpu") for each in limits] == ["4", "2", None]
    assert {pod["terminationGracePeriodSeconds"] for pod in pods} == {120}
    assert pods[1]["nodeSelector"] == {"medley/node": "Old_1"}
    labels = jobs[0]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    for pod in pods:  # pods are reached under the name of the Service
        assert pod["subdomain"] == service["metadata"]["name"]
        environment = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
        assert environment["MEET"] == "medley-new-0.medley:29500"


def sky_schemas() -> tuple[Any, Any]:
    """Returns the schemas of tasks and of resources that SkyPilot has, of its package alone; skips
    the test without it."""
    found = importlib.util.find_spec("sky") or importlib.machinery.PathFinder.find_spec(
        "sky", [str(Path(sys.prefix, "deploy"))]
    )
    if found is None or found.origin is None:
        pytest.skip("needs skypilot (requirements-deploy.txt)")
    root = Path(found.origin).parents[1]
    fakes: dict[str, Any] = {}
    for name in ("sky", "sky.utils", "sky.skylet", "sky.setup_files", "sky.server", "sky.data"):
        fakes[name] = types.ModuleType(name)
        fakes[name].__path__ = [str(root / name.replace(".", "/"))]
    fakes["sky"].__version__ = "0"
    for name in ("skylet.autostop_lib", "setup_files.dependencies", "server.plugins"):
        fakes[f"sky.{name}"] = mock.MagicMock()
    fakes["sky.server.daemons"] = mock.MagicMock()
    with mock.patch.dict(sys.modules, fakes):
        schemas = importlib.import_module("sky.utils.schemas")
        both = schemas.get_task_schema(), schemas.get_resources_schema()
    return tuple(json.loads(json.dumps(each, default=str)) for each in both)  # type: ignore[return-value]


def test_a_ray_job_has_a_placement_group_for_each_kind_of_node(folder: Path) -> None:
    text = write("ray", "--cpus", "2", "--node", "host:old=1", "--elastic")
    (call,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)][1:2]
    given = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    assert given["elastic"] and given["words"] == ["train.py"] and given["plan"] == "plan.json"
    assert [(group["name"], group["nodes"], group["resources"]) for group in given["groups"]] == [
        ("new", [DEVICES[:4], DEVICES[4:8]], {"CPU": 2, "GPU": 1, "new": 0.001}),
        ("old-1", [DEVICES[8:10]], {"CPU": 2, "GPU": 1, "Old_1": 0.001}),
        ("host", [DEVICES[10:]], {"CPU": 2, "old": 1.0}),
    ]
    with pytest.raises(ValueError, match=r"--node: not an amount of old \(got 'x', expected"):
        write("ray", "--node", "host:old=x")


def test_a_skypilot_job_fits_the_schemas_of_skypilot(folder: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    task, resources = sky_schemas()
    wide = ["--cpus", "4", "--memory", "64Gi", "--image", "a:b", "--elastic"]
    wide += ["--node", "new:infra=aws/us-east-1", "--node", "new:use_spot=true"]
    for options in ([], wide):
        for document in documents("skypilot", *options)[1:]:
            jsonschema.validate(document, task)
            jsonschema.validate(document["resources"], resources)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"accelerator": "A100:4"}, resources)


def test_a_skypilot_job_has_the_documented_fields(folder: Path) -> None:
    header, *tasks = documents("skypilot", "--storage", "s3://mine")
    assert header == {"name": "medley", "execution": "parallel"}
    assert [task["num_nodes"] for task in tasks] == [2, 1, 1]
    cards = [task["resources"].get("accelerators") for task in tasks]
    assert cards == ["A100-80GB:4", "V100:2", None]
    assert [task["resources"].get("use_spot") for task in tasks] == [None, True, None]
    fields = {"name", "num_nodes", "resources", "workdir", "file_mounts", "envs", "run"}
    for task in tasks:
        assert task.keys() == fields
        assert task["file_mounts"]["/checkpoints"]["source"] == "s3://mine"
        assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [130, 143]
    assert '--node "$SKYPILOT_NODE_RANK" --first 2 -- train.py' in tasks[1]["run"]


def test_cards_have_the_names_of_skypilot() -> None:
    names = {"A100-80GB": "A100-80GB", "A100-PCIe-40GB": "A100", "T4-16GB": "T4"}
    names |= {"H100-NVL-94GB": "H100", "RTX3090-24GB": "RTX3090", "V100-16GB": "V100"}
    assert {card: accelerator(card) for card in names} == names


def test_medley_train_gets_cluster_folder_and_resume(folder: Path) -> None:
    text = write("slurm", "--checkpoints", "/all/out", words=("train", "models:gpt", "--data", "x"))
    wanted = "-m medley train models:gpt --data x --cluster cluster.yaml --output /all/out --resume"
    assert wanted in text
    text = write("slurm", words=("train", "models:gpt", "--output=mine", "--cluster", "c.yaml"))
    assert "-m medley train models:gpt --output=mine --cluster c.yaml --resume" in text


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_failed_job_leaves_the_old_file(folder: Path, platform: str) -> None:
    before = write(platform)
    with pytest.raises(ValueError):
        write(platform, "--node", "absent:a=b")
    assert Path("job").read_text() == before and not list(folder.glob(".job*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--for"], r"--for: not a platform and a plan \(got nothing"),
        (["--for", "slrm", "plan.json"], r"--for: unknown platform \(got 'slrm', expected one of"),
        (["--for", "slurm", "plan.json"], r"no command \(got nothing, expected -- SCRIPT"),
        (["--for", "slurm", "absent.json", "--", "train.py"], "absent.json: cannot be read"),
        (["--for", "slurm", "plan.json", "--", "absent.py"], r"absent.py: cannot be read"),
        (
            ["--for", "slurm", "plan.json", "--node", "a", "--", "train.py"],
            r"--node: not a selection \(got 'a', expected POOL:KEY=VALUE\)",
        ),
        (
            ["--for", "slurm", "plan.json", "--node", "a:b=c", "--", "train.py"],
            r"--node: no such pool in the plan \(got 'a', expected Old_1 or host or new\)",
        ),
        (
            ["--for", "slurm", "plan.json", "--storage", "x", "--", "train.py"],
            r"--storage: not an option of slurm \(got x\). Leave it out.",
        ),
        (
            ["--for", "slurm", "plan.json", "--time-limit", "4h", "--", "train.py"],
            r"--time-limit: not a time \(got '4h', expected HH:MM:SS\)",
        ),
        (
            ["--for", "slurm", "plan.json", "--notice", "0", "--", "train.py"],
            r"--notice: too small \(got 0, expected 1 or more\)",
        ),
        (["--for", "kubernetes", "plan.json", "--", "train.py"], r"--image: missing \(got no"),
        (["plan.json", "--for", "slurm", "train.py"], r"--for: not the first option"),
    ],
)
def test_refusals_say_what_to_write(folder: Path, words: list[str], message: str) -> None:
    output = ["-o", "job"] if words[0] == "--for" else []
    at = words.index("--") if "--" in words else len(words)
    with pytest.raises(ValueError, match=message):
        cli.run(["launch", *words[:at], *output, *words[at:]])
    assert not Path("job").exists()


def test_a_plan_needs_the_cluster_that_has_its_devices(folder: Path) -> None:
    Path("cluster.yaml").write_text(re.sub("Old_1", "other", CLUSTER))
    with pytest.raises(ValueError, match=r"devices: not in the cluster \(got Old_1/0/0, expected"):
        write("slurm")
    Path("cluster.yaml").unlink()
    with pytest.raises(ValueError, match=r"--cluster: missing"):
        write("slurm")


def started(*codes: str) -> subprocess.Popen[str]:
    """Starts what runs Python code in the processes of a node."""
    commands = [([sys.executable, "-c", code], {}) for code in codes]
    run_all = "from medley_extras.deploy import start; start.GRACE_SECONDS = 0.5; "
    run_all += f"raise SystemExit(start.run_all({commands!r}))"
    package = str(Path(cli.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": package}
    return subprocess.Popen(
        [sys.executable, "-c", run_all], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_a_node_ends_with_the_code_of_its_first_failure() -> None:
    with started("import time; time.sleep(60)", "raise SystemExit(3)") as process:
        assert process.wait(30) == 3


def test_a_node_passes_sigterm_on_and_lets_all_save() -> None:
    saves = "import signal, time\n"
    saves += "signal.signal(signal.SIGTERM, lambda *_: [time.sleep({}), exit(130)])\n"
    saves += "print('ready', flush=True); time.sleep(60)"
    with started(saves.format(0), saves.format(2)) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "ready\n"
        begin = time.monotonic()
        process.terminate()
        assert process.wait(30) == 130
        assert time.monotonic() - begin > 2  # longer than the time after a failure


@pytest.mark.parametrize(
    ("code", "said", "ports"),
    [(0, [], 1), (130, ["requeued"], 1), (143, ["requeued"], 1), (3, [], 3)],
)
def test_a_slurm_job_is_queued_again_after_a_request_to_stop(
    folder: Path, code: int, said: list[str], ports: int
) -> None:
    write("slurm")
    tools = {"srun": f"echo $MEET >>ports; exit {code}"}
    tools["scontrol"] = '[ "$1" = requeue ] && echo requeued >>said; echo here'
    for name, text in tools.items():
        Path(name).write_text(f"#!/bin/sh\n{text}\n")
        Path(name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.defpath}", "SLURM_JOB_ID": "7"}
    environment["SLURM_JOB_NODELIST_HET_GROUP_0"] = "here"
    done = subprocess.run(["bash", "job"], env=environment, check=False, stderr=subprocess.DEVNULL)
    assert done.returncode == (3 if code == 3 else 0)
    lines = Path("said").read_text().split() if Path("said").exists() else []
    assert lines == said
    assert len(set(Path("ports").read_text().split())) == ports
