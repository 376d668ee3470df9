"""The GPUs of this machine that PyTorch has kernels for, and which of them a job takes."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Found(NamedTuple):
    """What one process found on its machine."""

    host: str
    local_rank: int
    gpus: list[str]  # by number: what tells one from all others, its UUID
    problems: list[str]  # a sentence for each GPU that PyTorch has no kernels for
    platform: str = "CUDA"  # or ROCm: those of one cannot reach those of the other


def has_kernels(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether a GPU of this compute capability runs what was compiled for these architectures.

    "sm_86": GPUs of the same major, no earlier minor version; "compute_120": all later ones too.
    An "a" or "f" behind the number is ignored.
    """
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
    """Returns the sentence about a GPU that PyTorch has no kernels for; "" where it has."""
    if has_kernels(capability, compiled):
        return ""
    return (
        f"cuda:{number} ({name}, compute capability {capability[0]}.{capability[1]}): torch "
        f"{torch.__version__} has no kernels for it, only for {', '.join(compiled) or 'none'}"
    )


def find(local_rank: int = 0) -> Found:
    """Returns what this process finds on its machine."""
    host = socket.gethostname()
    if not torch.cuda.is_available():
        return Found(host, local_rank, [], [])
    gpus, problems = [], []
    compiled = torch.cuda.get_arch_list()
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        gpus.append(str(getattr(facts, "uuid", f"{host}:{number}")))
        # ROCm lists architectures of another form, "gfx90a".
        if torch.version.hip is None:
            capability = torch.cuda.get_device_capability(number)
            problems.append(no_kernels(number, facts.name, capability, compiled))
    platform = "CUDA" if torch.version.hip is None else "ROCm"
    return Found(host, local_rank, gpus, [problem for problem in problems if problem], platform)


def choose(
    names: Sequence[str], kinds: Sequence[str], all_found: Sequence[Found], shared: bool = False
) -> list[str]:
    """Returns the torch device of each process of a job: "cpu" or "cuda:1".

    `names`, `kinds`: of the devices of the plan, by rank; `all_found`: what the processes found;
    `shared`: whether several may be on one GPU. Where no process has a GPU, all run on processors.
    Raises ValueError where it could not work: a GPU without kernels, one for two processes, GPUs in
    some processes and none in others whose device is one.
    """
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
        number = found.local_rank % len(found.gpus)  # a process may see one GPU only: its own
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
    """Returns what the processes talk over: "nccl", or "gloo" through the memory of the hosts.

    `asked`: what the user wants, "" for the faster that works. Raises ValueError where NCCL, which
    is asked for, does not reach all of them.
    """
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
