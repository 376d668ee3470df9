"""Checks of all GPUs of this machine together, with a process each (ranks.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from medley_extras.doctor import cards, ranks
from medley_extras.doctor.finding import FAILURE, OK, UNTRIED, WARNING, Finding

_PLAIN = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
_TWO = "two GPUs are needed"
_ONE = "one GPU here"
_LOG = "NCCL_DEBUG=INFO medley doctor --gpu says more"


def collectives(devices: Sequence[torch.device]) -> list[Finding]:
    """Checks NCCL over all GPUs. After a hang or failure it repeats with NCCL's simplest
    transport."""
    what = f"NCCL, {len(devices)} GPU{'s'[: len(devices) > 1]}"
    try:
        results = ranks.run("collectives", "nccl", len(devices))
    except ranks.StoppedError as stopped:
        try:
            ranks.run("collectives", "nccl", len(devices), environment=_PLAIN)
        except ranks.StoppedError as again:
            text = f"{stopped}; with Ring and Simple: {again}"
            return [
                Finding(what, text, FAILURE, f"{_LOG}; NCCL_P2P_DISABLE=1 helps on some boards")
            ]
        fix = "on all machines: export NCCL_ALGO=Ring NCCL_PROTO=Simple"
        return [Finding(what, f"{stopped}; with Ring and Simple it works", FAILURE, fix)]
    versions = sorted({result["version"] for result in results})
    text = f"NCCL {', '.join(versions)}: 1 byte to 256 MiB, odd sizes too, arrive as sent"
    if len(devices) == 1:
        return [Finding(what, f"{text}; {_ONE}, so nothing crossed", UNTRIED, _TWO)]
    rate = min(result["bytes_per_s"] for result in results)
    text += f"; all-reduce of 256 MiB at {rate / 1e9:.1f} GB/s"
    return [Finding(what, text, figures={"results": results})]


def gloo(devices: Sequence[torch.device]) -> list[Finding]:
    """Checks messages between processes of this machine, which mixed jobs use."""
    del devices
    try:
        ranks.run("collectives", "gloo", 2)
    except ranks.StoppedError as stopped:
        fix = "GLOO_SOCKET_IFNAME=lo for one machine; look at the firewall"
        return [Finding("Gloo", str(stopped), FAILURE, fix)]
    return [Finding("Gloo", "two processes: 1 byte to 1 MiB, odd sizes too, arrive as sent")]


def opposite(devices: Sequence[torch.device]) -> list[Finding]:
    """Checks NCCL and Gloo together, in opposite order on neighbours, for deadlocks."""
    what = "NCCL and Gloo at once"
    if len(devices) == 1:
        return [Finding(what, _ONE, UNTRIED, _TWO)]
    try:
        ranks.run("opposite", "nccl", len(devices))
    except ranks.StoppedError as stopped:
        return [Finding(what, str(stopped), FAILURE, _LOG)]
    return [Finding(what, "in opposite orders, 20 times: no deadlock")]


def overlap(devices: Sequence[torch.device]) -> list[Finding]:
    """Checks matmuls in parallel with copies on each GPU, and with an all-reduce of all."""
    findings = cards.overlap(devices)
    what = "overlap with NCCL"
    if len(devices) == 1:
        return [*findings, Finding(what, _ONE, UNTRIED, _TWO)]
    try:
        results = ranks.run("overlap", "nccl", len(devices))
    except ranks.StoppedError as stopped:
        return [*findings, Finding(what, str(stopped), FAILURE, _LOG)]
    factor = max(result["slowdown"] for result in results)
    text = f"products take {factor:.2f} times as long beside an all-reduce"
    state, fix = (OK, "") if factor < 1.3 else (WARNING, "measure with medley profile")
    return [*findings, Finding(what, text, state, fix, {"slowdown": factor})]


def abort(devices: Sequence[torch.device]) -> list[Finding]:
    """Checks that processes leave an all-reduce in which another one dies."""
    what = "a process that dies"
    if len(devices) < 3:
        return [Finding(what, f"{len(devices)} of 3 GPUs here", UNTRIED, "three GPUs are needed")]
    times = []
    try:
        for _ in range(3):
            results = ranks.run("abort", "nccl", len(devices), may_die=True)
            if len(results) < len(devices) - 1:
                raise ranks.StoppedError("abort: a rank that should have gone on ended")
            times.append(max(result["seconds"] for result in results))
    except ranks.StoppedError as stopped:
        return [Finding(what, str(stopped), FAILURE, _LOG)]
    text = f"the others are out of the all-reduce after {max(times):.1f} s, and sum without it"
    return [Finding(what, text, figures={"seconds": times})]


def allocator(devices: Sequence[torch.device]) -> list[Finding]:
    """Checks memory that grows in place (expandable segments), and NCCL on it."""
    what = "expandable segments"
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    try:
        ranks.run("allocator", "nccl", len(devices), environment=environment)
    except ranks.StoppedError as stopped:
        fix = "do not set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True here"
        return [Finding(what, str(stopped), WARNING, fix)]
    return [Finding(what, f"all-reduce on memory that grows in place, {len(devices)} ranks")]
