"""Capture: from any `nn.Module` whose call returns a loss to the training graph of Medley."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from medley import _core, quantized
from medley.ambient import own_state
from medley.capture import row_dims
from medley.capture.batch import Batch, Beside, read_batch
from medley.capture.buffers import Place
from medley.capture.convert import Converted, convert
from medley.capture.draws import substitute as substitute
from medley.capture.errors import CaptureError as CaptureError
from medley.capture.errors import RowsError, shortened
from medley.capture.model_check import check_model
from medley.capture.modules import placed as placed
from medley.capture.rehearsal import rehearse, runs
from medley.capture.trace import choose_primes, trace
from medley.capture.transformers_patches import unusual_experts
from medley.data.pictures import Pictures

_CHECK_BELOW_OPS = 2000
_NEAR = 16


@dataclasses.dataclass(frozen=True)
class Capture:
    """A captured graph as text, the values of its inputs `buffer "constant:<n>"`, and the buffers
    that forward reassigns.

    Example:
        found = capture_full(model, batch)
        Path("model.graph").write_text(found.text)
        print(sorted(found.constants))
    """

    text: str
    constants: dict[str, Tensor]
    assigned: set[Place]


@own_state()
def capture_full(
    model: nn.Module,
    example_batch: Any,
    name: str | None = None,
    check: bool | None = None,
    autocast: torch.dtype | None = None,
    beside: Beside | None = None,
    assigned: set[Place] | None = None,
    rows: Mapping[str, int | None] | None = None,
    pictures: Pictures | None = None,
) -> Capture:
    """Captures forward, loss and backward of `model` as graph text. The batch size is the symbol b.

    The model takes the batch and returns the loss as `medley.capture` describes. Its parameters may
    be real, fake or on the meta device. The model stays unchanged.

    `check` captures again at another batch size and compares. This detects a batch size that the
    first capture misses, such as B - 1 or sqrt(B). By default it does so for graphs of less than
    2,000 ops, and if a number is close to the batch size.

    With `autocast`, parameters, their gradients and the optimizer keep their dtype. The list of
    cast ops is that of PyTorch's autocast on the CPU, for every device. `beside` selects further
    outputs of the model. `assigned` has the buffers found by an earlier capture of the same code.

    `rows` and `pictures` are those of `read_batch`. If the model does not run with these rows, or
    has a cross-sample dependence, the dim is searched.

    Raises CaptureError, a ValueError, naming op, module and line of an unsupported op.
    """
    given = rows or {}

    def captured(batch: Batch) -> Capture:
        return _captured(model, batch, name, check, autocast, beside, assigned)

    with placed(model):
        check_model(model)
        batch = read_batch(example_batch, given, pictures)
        with quantized.as_buffers(model):
            return _with_rows_found(model, batch, given, autocast, captured)


def _with_rows_found(
    model: nn.Module,
    batch: Batch,
    given: Mapping[str, int | None],
    autocast: torch.dtype | None,
    captured: Callable[[Batch], Capture],
) -> Capture:
    def trial(way: Batch) -> bool:
        return runs(model, way, autocast)

    is_time_first = row_dims.is_time_first(model)
    try:
        first = captured(batch)
    except RowsError as error:
        for way in row_dims.found(batch, given, trial, is_time_first):
            try:
                return captured(way)
            except RowsError:
                continue
        raise error from None
    if is_time_first and _is_cross_sample(first):
        for way in row_dims.time_first(batch, given, trial):
            other = captured(way)
            return first if _is_cross_sample(other) else other
    return first


def _is_cross_sample(captured: Capture) -> bool:
    graph, _ = _core.Graph.parse(captured.text, "<capture>").run_passes()
    return bool(_core.row_coupling(graph))


def _captured(
    model: nn.Module,
    batch: Batch,
    name: str | None,
    check: bool | None,
    autocast: torch.dtype | None,
    beside: Beside | None,
    assigned: set[Place] | None,
) -> Capture:
    first, second = choose_primes(model, batch, 2)
    name = name or type(model).__name__
    if autocast not in (None, torch.bfloat16):
        raise CaptureError(f"autocast: found {autocast}, expected torch.bfloat16")
    most = None
    if assigned is None:
        assigned, most = rehearse(model, batch, (first, second), autocast)
    converted = convert(trace(model, batch, first, autocast, assigned, beside, most), name)
    cheap = converted.num_ops < _CHECK_BELOW_OPS
    if check or (check is None and (cheap or _is_near_batch(converted.text, first))):
        again = trace(model, batch, second, autocast, assigned, beside, most)
        _compare(converted, convert(again, name))
    for sentence in unusual_experts(model):
        warnings.warn(sentence, stacklevel=2)
    return Capture(converted.text, converted.constants, assigned)


def _is_near_batch(text: str, prime: int) -> bool:
    """Returns whether a number in the text is next to a multiple of the batch size, such as b +
    1."""
    for number in re.findall(r"\b[1-9]\d{3,}\b", text):
        times = (int(number) + _NEAR) // prime
        if times and abs(int(number) - times * prime) <= _NEAR:
            return True
    return False


def _compare(first: Converted, second: Converted) -> None:
    """Raises CaptureError at the first line that differs between captures at two batch sizes."""
    if first.text == second.text:
        return
    ones, others = first.text.splitlines(), second.text.splitlines()
    for one, other in zip(ones, others, strict=False):
        if one != other:
            raise RowsError(
                "the graph depends on the batch size in a way that no multiple of it expresses "
                f"(B - 1, sqrt(B), a loop over the rows): {_described(one)}; at another size "
                f"{_described(other)}"
            )
    raise RowsError("the number of ops depends on the batch size: no loop over the rows, please")


def _described(line: str) -> str:
    text = line.partition(" = ")[2]
    text, _, place = text.partition(" @")
    return shortened(f"{text[:150]} @{place}")
