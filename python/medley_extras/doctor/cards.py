"""Checks of each GPU: its kernels, clocks, speed and buses."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from medley.cluster import kinds_meant, one_device, parse_cluster
from medley.run import accelerators
from medley_extras.doctor.finding import FAILURE, OK, UNTRIED, WARNING, Finding
from medley_extras.probe import measure_device, median_seconds

_NEAR = 0.15  # relative difference from the catalogue that counts as equal
_LOAD_SECONDS = 5.0
# Bits of clocks_event_reasons.active: causes that slow down a GPU against its settings.
_SLOWED = {0x8: "hardware", 0x20: "temperature", 0x40: "temperature", 0x80: "power brake"}
_POWER_CAP = 0x4
_RATES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# The relative error of a matmul of 512 x 512 normally distributed values.
_ERRORS = {"f64": 1e-13, "f32": 1e-5, "tf32": 2e-3, "f16": 2e-3, "bf16": 1e-2, "fp8": 0.1}


def kernels(devices: Sequence[torch.device]) -> list[Finding]:
    """Compares one matmul per dtype on every GPU with the CPU's in float64."""
    findings = []
    for device in devices:
        major, minor = torch.cuda.get_device_capability(device)
        name = torch.cuda.get_device_name(device)
        problem = accelerators.no_kernels(
            device.index, name, (major, minor), torch.cuda.get_arch_list()
        )
        if problem:
            fix = "scripts/setup.sh installs a wheel that has them"
            findings.append(Finding(f"kernels of {device}", problem, FAILURE, fix))
            continue
        errors = {kind: product_error(device, kind) for kind in _ERRORS}
        wrong = [
            kind for kind, error in errors.items() if error is not None and error > _ERRORS[kind]
        ]
        without = [kind for kind, error in errors.items() if error is None]
        text = f"{name}, compute capability {major}.{minor}: products right in "
        text += ", ".join(kind for kind in errors if kind not in [*wrong, *without])
        if without:
            text += f"; none in {', '.join(without)}"
        figures = {"errors": errors, "name": name, "capability": [major, minor]}
        if wrong:
            text += f"; wrong in {', '.join(wrong)}"
            fix = "test the card's memory (dcgmi diag -r 3); do not train on it"
            findings.append(Finding(f"kernels of {device}", text, FAILURE, fix, figures))
        else:
            findings.append(Finding(f"kernels of {device}", text, figures=figures))
    return findings


def product_error(device: torch.device, kind: str) -> float | None:
    """Returns the relative error of a matmul in a dtype, or None if the GPU lacks it. Emulated
    dtypes count as lacking."""
    if kind == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(512, 512, generator=generator, dtype=torch.float64) for _ in "ab")
    expected = left @ right
    try:
        product = _product(left.to(device), right.to(device), kind).cpu().double()
    except (RuntimeError, AttributeError):
        return None
    return float((product - expected).norm() / expected.norm())


def _product(left: Tensor, right: Tensor, kind: str) -> Tensor:
    if kind == "fp8":
        eight = torch.float8_e4m3fn
        one = torch.ones((), device=left.device)
        product: Tensor = torch._scaled_mm(
            left.to(eight),
            right.t().contiguous().t().to(eight),
            scale_a=one,
            scale_b=one,
            out_dtype=torch.bfloat16,
        )
        return product
    if kind == "f64":
        return left @ right
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    try:
        dtype = _RATES.get(kind, torch.float32)
        return left.to(dtype) @ right.to(dtype)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def ask_driver(device: torch.device, fields: Sequence[str]) -> dict[str, str]:
    """Returns fields of nvidia-smi for a GPU, or none if it gives no answer."""
    if shutil.which("nvidia-smi") is None:
        return {}
    unique = str(getattr(torch.cuda.get_device_properties(device), "uuid", device.index))
    if "-" in unique and not unique.startswith(("GPU-", "MIG-")):
        unique = f"GPU-{unique}"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--id={unique}", f"--query-gpu={','.join(fields)}"]
            + ["--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    if done.returncode or len(values) != len(fields):
        return {}
    return dict(zip(fields, values, strict=True))


def number(said: dict[str, str], field: str) -> float | None:
    """Returns a number from the driver, or None for "[N/A]"."""
    text = said.get(field, "")
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None


_STATE = (
    "clocks.sm",
    "clocks.max.sm",
    "temperature.gpu",
    "power.draw",
    "power.limit",
    "power.default_limit",
    "ecc.errors.uncorrected.volatile.total",
    "persistence_mode",
)


def state(devices: Sequence[torch.device]) -> list[Finding]:
    """Checks memory, ECC, power and clocks while all GPUs compute for some seconds."""
    matrices = [torch.rand(4096, 4096, device=device).half() for device in devices]

    def load(seconds: float) -> None:
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            for matrix in matrices:
                for _ in range(10):
                    torch.mm(matrix, matrix)
            for device in devices:
                torch.cuda.synchronize(device)

    load(_LOAD_SECONDS - 1)
    findings = []
    for device, matrix in zip(devices, matrices, strict=True):
        for _ in range(2000):  # computes during the query
            torch.mm(matrix, matrix)
        said = ask_driver(device, _STATE)
        reasons: dict[str, str] = {}
        for field in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
            reasons = reasons or ask_driver(device, [field])
        torch.cuda.synchronize(device)
        free, total = torch.cuda.mem_get_info(device)
        found = {"memory.free": f"{free / 2**20:.0f}", "memory.total": f"{total / 2**20:.0f}"}
        findings.append(judge_state(device, {**said, **found, **reasons}))
    return findings


def judge_state(device: torch.device, said: dict[str, str]) -> Finding:
    """Returns the finding on a GPU under load from the driver's fields."""
    what = f"state of {device}"
    if len(said) <= 2:
        fix = "nvidia-smi comes with the driver; containers need it mounted"
        return Finding(what, "nvidia-smi does not answer", UNTRIED, fix, dict(said))
    active = next((int(number(said, f) or 0) for f in said if f.endswith("reasons.active")), 0)
    slowed = sorted({why for bit, why in _SLOWED.items() if active & bit})
    clock, most = number(said, "clocks.sm"), number(said, "clocks.max.sm")
    errors = number(said, "ecc.errors.uncorrected.volatile.total")
    limit, default = number(said, "power.limit"), number(said, "power.default_limit")
    free, total = number(said, "memory.free") or 0, number(said, "memory.total") or 1
    text = f"{clock or 0:.0f} of {most or 0:.0f} MHz under load, {said.get('temperature.gpu')} C, "
    text += f"{said.get('power.draw')} of {said.get('power.limit')} W"
    if active & _POWER_CAP:
        text += ", held by its power limit"
    if errors:
        fix = "take the card out of the cluster: nvidia-smi -q -d ECC,ROW_REMAPPER"
        return Finding(what, f"{text}; {errors:.0f} ECC errors", FAILURE, fix, dict(said))
    if slowed:
        fix = "look at fans, dust and power cables: nvidia-smi -q -d PERFORMANCE"
        return Finding(what, f"{text}; slowed by {', '.join(slowed)}", WARNING, fix, dict(said))
    if limit and default and limit < 0.95 * default:
        fix = f"nvidia-smi -pl {default:.0f} raises it; plans by the catalogue expect that"
        return Finding(what, f"{text}; its default is {default:.0f} W", WARNING, fix, dict(said))
    if clock and most and clock < 0.5 * most:
        fix = "nvidia-smi -q -d CLOCK,PERFORMANCE says who holds them"
        return Finding(what, f"{text}; clocks are low", WARNING, fix, dict(said))
    if free < total / 2:
        fix = "another process holds the memory: nvidia-smi names it"
        return Finding(
            what, f"{text}; {free:.0f} of {total:.0f} MiB free", WARNING, fix, dict(said)
        )
    return Finding(what, text, figures=dict(said))


def speed(devices: Sequence[torch.device]) -> list[Finding]:
    """Compares sustained rates with those of the catalogue, which plans use."""
    return [compare_speed(device, torch.cuda.get_device_name(device)) for device in devices]


def compare_speed(device: torch.device, name: str) -> Finding:
    what = f"speed of {device}"
    own = measure_device(device)
    rates = {**own.sustained, "memory": own.memory_bandwidth}
    figures = {
        "flop_per_s": own.sustained,
        "memory_bytes_per_s": own.memory_bandwidth,
        "launch_latency_s": own.launch_latency,
    }
    text = ", ".join(f"{kind} {rate / 1e12:.1f} Tflop/s" for kind, rate in own.sustained.items())
    text += f", memory {own.memory_bandwidth / 1e9:.0f} GB/s"
    meant = kinds_meant(name)
    if len(meant) != 1:
        kinds = f"{' or '.join(meant)}" if meant else "no kind of the catalogue"
        fix = "medley probe writes a cluster.yaml with what it measures"
        return Finding(what, f"{text}; {name} is {kinds}", OK, fix, figures)
    kind = parse_cluster(one_device(meant[0])).kind(0)
    expected = {each: kind.sustained(each) for each in own.sustained}
    expected["memory"] = kind.memory_bandwidth
    parts = {each: rates[each] / known for each, known in expected.items() if known}
    figures["catalogue"] = {"kind": meant[0], "measured_over_expected": parts}
    text += f"; of {meant[0]} in the catalogue: "
    text += ", ".join(f"{each} {part:.2f}" for each, part in parts.items())
    if any(abs(part - 1) > _NEAR for part in parts.values()):
        fix = "plan with the cluster.yaml of medley probe, which measures, or with a profile"
        return Finding(what, text, WARNING, fix, figures)
    return Finding(what, text, figures=figures)


_BUS = (
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
)


def buses(devices: Sequence[torch.device]) -> list[Finding]:
    """Checks copies to and from every GPU, and between each pair: their speed and their results."""
    findings = [_bus(device) for device in devices]
    for first in devices:
        findings += [_peers(first, second) for second in devices if second != first]
    if len(devices) == 1:
        text = f"{devices[0]} is the only GPU here"
        findings.append(Finding("copies between cards", text, UNTRIED, "two GPUs are needed"))
    return findings


def _random_bytes(size: int, device: torch.device) -> Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)


def _bus(device: torch.device) -> Finding:
    what = f"bus of {device}"
    size = (256 << 20) - 1
    here = _random_bytes(size, torch.device("cpu")).pin_memory()
    back = torch.empty_like(here).pin_memory()
    there = torch.empty(size, dtype=torch.uint8, device=device)
    rates = {
        "to_card": size / median_seconds(lambda: there.copy_(here, non_blocking=True), device),
        "from_card": size / median_seconds(lambda: back.copy_(there, non_blocking=True), device),
    }
    said = ask_driver(device, _BUS)
    figures = {"bytes_per_s": rates, **said}
    text = f"{rates['to_card'] / 1e9:.1f} GB/s to it, {rates['from_card'] / 1e9:.1f} GB/s from it"
    width, most = number(said, "pcie.link.width.current"), number(said, "pcie.link.width.max")
    if width:
        text += f", PCIe {said['pcie.link.gen.current']} x{width:.0f}"
    if not torch.equal(here, back):
        fix = "reseat the card; check dmesg for PCIe errors"
        return Finding(what, f"{text}; other bytes came back", FAILURE, fix, figures)
    if width and most and width < most:
        fix = "a slot with all lanes; riser cables and shared slots halve them"
        return Finding(what, f"{text} of x{most:.0f}", WARNING, fix, figures)
    return Finding(what, text, figures=figures)


def _peers(first: torch.device, second: torch.device) -> Finding:
    what = f"copies {first} to {second}"
    access = torch.cuda.can_device_access_peer(first, second)
    size = (64 << 20) - 1
    source = _random_bytes(size, first)
    target = torch.zeros(size, dtype=torch.uint8, device=second)
    rate = size / median_seconds(lambda: target.copy_(source), second)
    figures = {"bytes_per_s": rate, "peer_access": access}
    text = f"{rate / 1e9:.1f} GB/s, {'directly' if access else 'through the processor'}"
    if not torch.equal(target.cpu(), source.cpu()):
        fix = "export NCCL_P2P_DISABLE=1, on all machines; look for an IOMMU that is on"
        return Finding(what, f"{text}; other bytes arrived", FAILURE, fix, figures)
    return Finding(what, text, figures=figures)


def overlap(devices: Sequence[torch.device]) -> list[Finding]:
    """Returns the slow-down of matmuls while another stream copies."""
    return [_overlap(device) for device in devices]


def _overlap(device: torch.device) -> Finding:
    matrix = torch.rand(4096, 4096, device=device).half()
    here = torch.empty(256 << 20, dtype=torch.uint8).pin_memory()
    there = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    other = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def products() -> None:
        for _ in range(40):
            torch.mm(matrix, matrix)

    alone = median_seconds(products, device)

    def both() -> None:
        with torch.cuda.stream(other):  # longer than the matmuls
            for _ in range(2 + int(alone / 4e-3)):
                here.copy_(there, non_blocking=True)
        products()
        torch.cuda.current_stream(device).synchronize()

    times = []
    for _ in range(5):
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        both()
        times.append(time.perf_counter() - begin)
        torch.cuda.synchronize(device)
    factor = sorted(times)[2] / alone
    text = f"products take {factor:.2f} times as long while copies run"
    figures = {"slowdown": factor}
    if factor > 1.3:
        fix = "predictions assume that copies hide behind products: measure with medley profile"
        return Finding(f"overlap on {device}", text, WARNING, fix, figures)
    return Finding(f"overlap on {device}", text, figures=figures)
