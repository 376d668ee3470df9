"""The cross entropy of many classes: our kernels compared with the PyTorch ops that they replace.

    python benchmarks/cross_entropy.py [--device cuda] [--dtype bf16] [--rows 1024]
                                       [--classes 8000 50257] [--rounds 20]

PyTorch's side is a program without the pair: the cast of 16-bit logits to f32 and back,
_log_softmax and nll_loss, with results in place of operands where the executor does so. Both sides
take turns. Memory is the maximum of a side, with its logits.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from medley import _runtime

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
MIB = 1 << 20
SUM, IGNORED = 2, -100
ours, aten = torch.ops.medley, torch.ops.aten
Side = Callable[[list[Tensor], Tensor, Tensor], Tensor]


def of_pytorch(held: list[Tensor], target: Tensor, grad: Tensor) -> Tensor:
    """Returns the gradient of the logits, which die where they are cast."""
    dtype, whole = held[0].dtype, torch.float32
    x = held.pop().to(whole)
    scores = torch._log_softmax(x, 1, False, out=x)  # type: ignore[call-overload]
    _, total = aten.nll_loss_forward(scores, target, None, SUM, IGNORED)
    d = aten.nll_loss_backward(grad, scores, target, None, SUM, IGNORED, total)
    aten._log_softmax_backward_data.out(d, scores, 1, whole, out=d)
    del x, scores
    return d.to(dtype)


def of_medley(held: list[Tensor], target: Tensor, grad: Tensor) -> Tensor:
    """Returns the gradient of the logits, in their place."""
    logits = held.pop()
    lse = ours.log_sum_exp(logits)
    _, total = ours.cross_entropy(logits, lse, target, None, SUM, IGNORED)
    arguments = (logits, lse, grad, target, None, SUM, IGNORED, total)
    result: Tensor = ours.cross_entropy_backward.out(*arguments, out=logits)
    return result


SIDES: dict[str, Side] = {"PyTorch": of_pytorch, "Medley": of_medley}


def wait(device: str) -> None:
    """Waits for a GPU."""
    if device != "cpu":
        torch.cuda.synchronize()


def peak(device: str) -> int:
    """Returns the most bytes since begin_peak()."""
    return _runtime.allocated_bytes()[1] if device == "cpu" else torch.cuda.max_memory_allocated()


def begin_peak(device: str) -> int:
    """Returns the bytes now."""
    if device == "cpu":
        _runtime.reset_peak()
        return _runtime.allocated_bytes()[0]
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def measure(device: str, dtype: str, rows: int, classes: int, rounds: int) -> None:
    """Prints one row of the table."""
    torch.manual_seed(0)
    kept = (3 * torch.randn(rows, classes, device=device)).to(DTYPES[dtype])
    target = torch.randint(0, classes, (rows,), device=device)
    grad = torch.tensor(1 / rows, device=device)
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    most: dict[str, int] = {}
    for turn in range(-2, rounds):
        for name, side in SIDES.items():
            before = begin_peak(device)
            held = [kept.clone()]
            wait(device)
            start = time.perf_counter()
            side(held, target, grad)
            wait(device)
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
            most[name] = peak(device) - before
    cells = [
        f"{statistics.median(seconds[name]) * 1e3:.1f} ms, {most[name] / MIB:.0f} MiB"
        for name in SIDES
    ]
    print(f"| {dtype} | {rows} x {classes} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Runs the requested measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", nargs="+", default=["bf16", "f32"], choices=DTYPES)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--classes", type=int, nargs="+", default=[8000, 32000, 50257])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    if options.device == "cpu":
        _runtime.count_allocations()
    print(f"| logits | rows x classes | {' | '.join(SIDES)} |")
    with torch.inference_mode():
        for dtype in options.dtype:
            for classes in options.classes:
                measure(options.device, dtype, options.rows, classes, options.rounds)


if __name__ == "__main__":
    main()
