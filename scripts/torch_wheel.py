#!/usr/bin/env python3
"""Prints the pip arguments for a PyTorch with kernels for the GPUs of this machine.

    scripts/torch_wheel.py 2.13.0 [MACHINE]   ->   torch==2.13.0+cu126 --extra-index-url https://...

PyPI's wheel is built with CUDA 13: it has no kernels for GPUs before Turing, and needs driver 580.
The wheel built with CUDA 12.6 has none for Blackwell. nvidia-smi lists GPUs and driver. If no wheel
runs on all of them it prints the reason and exits with 3. TORCH_WHEEL=cpu, cu126 or cu130 in the
environment overrides the choice.
"""

import os
import platform
import shutil
import subprocess
import sys
from typing import NamedTuple

INDEX = "https://download.pytorch.org/whl/"


class Wheel(NamedTuple):
    """A wheel of PyTorch for Linux: "PyTorch CUDA Support Matrix" in pytorch's RELEASE.md, releases
    2.12 to 2.14."""

    name: str
    driver: int  # the oldest that it runs with
    kernels: dict[
        str, list[str]
    ]  # compute capabilities by machine; "+PTX" runs on all later ones too


WHEELS = [  # in the order in which they are preferred
    Wheel(
        "cu130",
        580,
        {
            "x86_64": ["7.5", "8.0", "8.6", "9.0", "10.0", "12.0+PTX"],
            "aarch64": ["8.0", "9.0", "10.0", "11.0", "12.0+PTX"],
        },
    ),
    Wheel(
        "cu126",
        525,
        {
            "x86_64": ["5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0"],
            "aarch64": ["8.0", "9.0"],
        },
    ),
]
NAMES = ["cpu", *(wheel.name for wheel in WHEELS)]


class Card(NamedTuple):
    """A GPU as nvidia-smi describes it."""

    name: str
    capability: tuple[int, int]
    driver: int


class NoWheelError(Exception):
    """The reason why no wheel fits."""


def runs_on(capability: tuple[int, int], kernels: list[str]) -> bool:
    """Returns whether kernels run on a GPU: of the same major and no earlier minor version, or PTX
    for all later ones."""
    for kernel in kernels:
        major, minor = map(int, kernel.removesuffix("+PTX").split("."))
        if kernel.endswith("+PTX") and capability >= (major, minor):
            return True
        if capability[0] == major and capability[1] >= minor:
            return True
    return False


def cards() -> list[Card]:
    """Returns the GPUs of this machine, or none if nvidia-smi is missing or finds none."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    if subprocess.run(["nvidia-smi"], capture_output=True, check=False).returncode != 0:
        return []
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    found = []
    for line in answer.stdout.splitlines() if answer.returncode == 0 else []:
        if not line.strip():
            continue
        fields = [field.strip() for field in line.rsplit(",", 2)]
        try:
            major, minor = map(int, fields[1].split("."))
            found.append(Card(fields[0], (major, minor), int(fields[2].split(".")[0])))
        except (IndexError, ValueError):
            raise NoWheelError(
                f"nvidia-smi: found {line!r}, expected name, compute_cap, driver"
            ) from None
    if not found:
        raise NoWheelError(
            "nvidia-smi does not say the compute capability of the cards: its driver is older than "
            "525, which is the oldest that PyTorch's wheels run with"
        )
    return found


def _text(card: Card) -> str:
    return f"{card.name} (compute capability {card.capability[0]}.{card.capability[1]})"


def choose(found: list[Card], machine: str) -> str:
    """Returns the name of the wheel. Raises NoWheelError."""
    if not found:
        return "cpu"
    driver = min(card.driver for card in found)
    able = [
        wheel
        for wheel in WHEELS
        if all(runs_on(card.capability, wheel.kernels.get(machine, [])) for card in found)
    ]
    for wheel in able:
        if driver >= wheel.driver:
            return wheel.name
    if able:
        raise NoWheelError(
            f"the driver is {driver}: these cards need {able[-1].driver} or later, with which "
            f"PyTorch's {able[-1].name} wheel runs"
        )
    for card in found:
        if not any(runs_on(card.capability, wheel.kernels.get(machine, [])) for wheel in WHEELS):
            raise NoWheelError(f"no PyTorch wheel for {machine} has kernels for {_text(card)}")
    oldest, newest = (pick(found, key=lambda card: card.capability) for pick in (min, max))
    raise NoWheelError(
        f"no one PyTorch wheel has kernels for both {_text(oldest)} and {_text(newest)}: make an "
        "environment for each kind of card, with TORCH_WHEEL=cu126 for the older ones and "
        "TORCH_WHEEL=cu130 for the newer ones, and give each process its own"
    )


def pip_arguments(wheel: str, version: str) -> list[str]:
    """Returns the arguments for `pip install`."""
    if wheel == "cu130":  # PyPI's own
        return [f"torch=={version}"]
    return [f"torch=={version}+{wheel}", "--extra-index-url", INDEX + wheel]


def main() -> int:
    """The command."""
    try:
        version, machine = (*sys.argv[1:], platform.machine())[:2]
        wheel = os.environ.get("TORCH_WHEEL") or choose(cards(), machine)
        if wheel not in NAMES:
            raise NoWheelError(f"TORCH_WHEEL: found {wheel}, expected one of {', '.join(NAMES)}")
    except NoWheelError as why:
        print(f"setup: {why}", file=sys.stderr)
        return 3
    print(*pip_arguments(wheel, version))
    return 0


if __name__ == "__main__":
    sys.exit(main())
