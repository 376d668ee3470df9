"""The GPUs of this machine with kernels in PyTorch, and their assignment to the processes of a
job."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Found(NamedTuple):
    """The GPUs that one process found on its machine.

    Example:
        found = find()
        print(len(found.gpus), found.platform, *found.problems)
    """

    host: str
    local_rank: int
    gpus: list[str]  # by number: UUID
    problems: list[str]  # one sentence per GPU without kernels in PyTorch
    platform: str = "CUDA"  # or ROCm; the two cannot communicate


def has_kernels(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Returns whether a GPU of this compute capability runs code compiled for these architectures.
    "sm_86" covers GPUs of the same major and no earlier minor version; "compute_120" also all later
    ones. A trailing "a" or "f" is ignored."""
    for name in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", name)
        if found is None:
            continue
        major, minor = int(found[2]), int(found[3])
        if found[1] == "compute" and capability >= (major, minor):
            return True
        if capability[0] == major and capability[1] >= minor:
            return True
    return False


def no_kernels(number: int, name: str, capability: tuple[int, int], compiled: list[str]) -> str:
    """Returns the sentence about a GPU without kernels in PyTorch, or ""."""
    if has_kernels(capability, compiled):
        return ""
    return (
        f"cuda:{number} ({name}, compute capability {capability[0]}.{capability[1]}): torch "
        f"{torch.__version__} has no kernels for it, only for {', '.join(compiled) or 'none'}"
    )


def find(local_rank: int = 0) -> Found:
    """Returns the GPUs that this process finds on its machine."""
    host = socket.gethostname()
    if not torch.cuda.is_available():
        return Found(host, local_rank, [], [])
    gpus, problems = [], []
    compiled = torch.cuda.get_arch_list()
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        gpus.append(str(getattr(facts, "uuid", f"{host}:{number}")))
        # Architectures of ROCm have another form, "gfx90a".
        if torch.version.hip is None:
            capability = torch.cuda.get_device_capability(number)
            problems.append(no_kernels(number, facts.name, capability, compiled))
    platform = "CUDA" if torch.version.hip is None else "ROCm"
    return Found(host, local_rank, gpus, [problem for problem in problems if problem], platform)


def choose(
    names: Sequence[str], kinds: Sequence[str], all_found: Sequence[Found], shared: bool = False
) -> list[str]:
    """Returns the torch device of each process of a job: "cpu" or "cuda:1". `names`, `kinds`:
    devices of the plan and their types, by rank. `all_found`: results of the processes. `shared`:
    several may use one GPU. If no process has a GPU, all run on CPUs. Raises ValueError for a GPU
    without kernels, one for two processes, or a job with GPUs in only some of the processes that
    need one."""
    if set(kinds) == {"CPU"} or not any(found.gpus for found in all_found):
        return ["cpu"] * len(names)
    given = list(zip(names, kinds, all_found, strict=True))
    without = [f"{n} (on {f.host})" for n, kind, f in given if kind != "CPU" and not f.gpus]
    if without:
        having = [f"{n} (on {f.host})" for n, _, f in given if f.gpus]
        raise ValueError(
            f"devices: found GPUs for {', '.join(having)}, but none for {', '.join(without)}; "
            "expected a GPU where the cluster has one: `medley doctor --gpu` there, or plan without"
        )
    taken: dict[str, str] = {}
    chosen = []
    for name, kind, found in given:
        if kind == "CPU":
            chosen.append("cpu")
            continue
        number = found.local_rank % len(found.gpus)  # a process may see only its own GPU
        problem = next((text for text in found.problems if text.startswith(f"cuda:{number} ")), "")
        if problem:
            raise ValueError(f"devices: {name} on {found.host}: {problem}; install another wheel")
        other = taken.setdefault(found.gpus[number], name)
        if other != name and not shared:
            raise ValueError(
                f"devices: {other} and {name} would both take cuda:{number} of {found.host}, "
                f"which has {len(found.gpus)}: NCCL needs a GPU for each process; "
                "MEDLEY_BACKEND=gloo lets them share it"
            )
        chosen.append(f"cuda:{number}")
    return chosen


def backend(chosen: Sequence[str], all_found: Sequence[Found], asked: str = "") -> str:
    """Returns the backend of the processes: "nccl", or "gloo" through host memory. `asked`: choice
    of the user, "" for the faster that works. Raises ValueError if NCCL is chosen but does not
    reach all processes."""
    platforms = {
        "processors" if device == "cpu" else f"GPUs of {found.platform}"
        for device, found in zip(chosen, all_found, strict=True)
    }
    reached = len(platforms) == 1 and "processors" not in platforms
    if asked == "nccl" and not reached:
        raise ValueError(
            f"environment: MEDLEY_BACKEND: found nccl, expected gloo for "
            f"{' and '.join(sorted(platforms))}"
        )
    return asked or ("nccl" if reached else "gloo")
