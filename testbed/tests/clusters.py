"""A cluster for the tests, and functions that run commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import medley

FOUR = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 2, device: CPU, devices_per_node: 1}
  - {name: slow, count: 2, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: 100 Mbit/s, latency: 50 us}
devices:
  half: {based_on: CPU, speed: 0.5, memory: 8 GiB}
"""
ROOT = Path(__file__).resolve().parents[2]
Testbed = Callable[..., list[str]]


def environment() -> dict[str, str]:
    """Returns the environment of a command with the imports of this process."""
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    return {**os.environ, "PYTHONPATH": path}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )


def first_of(graph: medley.Graph, block: int) -> str:
    """Returns the first op of a GPT's block, where a stage may begin."""
    names = (name for name in graph.core.stable_names() if "~" not in name)
    return next(name for name in names if name.startswith(f"blocks.{block}."))
