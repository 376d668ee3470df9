"""The first module whose output differs between a graph and its model."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from medley.capture.graph_text import GraphText

_MOST_BYTES = 2 << 30  # bytes of graph values compared at a time


@dataclasses.dataclass
class _Call:
    """A call of a module."""

    path: str
    inputs: list[_Seen]
    outputs: list[_Seen] = dataclasses.field(default_factory=list)


class _Seen:
    """A tensor at the entry or exit of a module, and the graph values equal to it."""

    def __init__(self, tensor: Tensor) -> None:
        self.values = tensor.detach().clone()
        self.ordered: Tensor | None = None
        self.is_found = False
        self.has_candidate = False
        self.source = ""

    def look(self, value: Tensor, relative: float, of_module: bool, source: str) -> None:
        """Compares with a value of the graph that has as many elements."""
        mine, other = self.values.reshape(-1), value.reshape(-1).to(self.values.dtype)
        bound = relative * _most(mine)
        gap = _most(mine - other)
        if gap > bound and not self.is_found and abs(_most(mine) - _most(other)) <= bound:
            if self.ordered is None:
                self.ordered = mine.sort().values
            self.is_found = _most(self.ordered - other.sort().values) <= bound  # a transposition
        self.is_found |= gap <= bound
        if of_module:
            self.has_candidate = True
            self.source = source


class Recorder:
    """The calls of the modules of a model in the order in which they end."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self._open: list[_Call] = []

    @contextlib.contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Records the calls inside the block."""
        handles: list[Any] = []
        try:
            for path, module in model.named_modules():
                handles += [
                    module.register_forward_pre_hook(self._before(path), with_kwargs=True),
                    module.register_forward_hook(self._after),
                ]
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._open.append(_Call(path, _seen((args, kwargs))))

        return hook

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self._open.pop()
        call.outputs = _seen(output)
        self.calls.append(call)


def first_parting(
    text: GraphText,
    symbols: Mapping[str, int],
    recorder: Recorder,
    run: Callable[[Sequence[int]], Mapping[str, Tensor]],
    known: Sequence[Tensor],
    names: Sequence[str],
    relative: float,
) -> str:
    """Returns "module 'a.b', file.py:12" of the first module whose inputs the graph has and whose
    output it lacks. Otherwise it returns the module of the first of `names`, such as
    "gradient:a.b.weight". `run` returns the results of the ops at given places. `known` has the
    inputs of the graph."""
    seen = [each for call in recorder.calls for each in (*call.inputs, *call.outputs)]
    for tensor in known:
        for each in seen:
            if each.values.numel() == tensor.numel():
                each.look(tensor, relative, False, "")
    for op, value in _values(text, symbols, {each.values.numel() for each in seen}, run):
        for call in recorder.calls:
            is_of_module = op.module == call.path or op.module.startswith(f"{call.path}.")
            for each in call.inputs + call.outputs:
                if each.values.numel() == value.numel():
                    each.look(value, relative, is_of_module or not call.path, op.source)
    parted = [
        call
        for call in recorder.calls
        if any(each.has_candidate and not each.is_found for each in call.outputs)
    ]
    first = [call for call in parted if all(each.is_found for each in call.inputs)]
    if any(not name.startswith("gradient:") for name in names) and (first or parted):
        call = (first or parted)[0]
        source = next(each.source for each in call.outputs if not each.is_found)
        return f"module {call.path!r}{f', {source}' if source else ''}"
    return owner_of(text, recorder, names)


def _values(
    text: GraphText,
    symbols: Mapping[str, int],
    sizes: set[int],
    run: Callable[[Sequence[int]], Mapping[str, Tensor]],
) -> Iterator[tuple[Any, Tensor]]:
    """Yields the floating-point results of forward with these numbers of elements, a few at a
    time."""
    batch: list[int] = []
    held = 0

    def given(places: Sequence[int]) -> Iterator[tuple[Any, Tensor]]:
        for name, value in run(places).items():
            kind, _, place = name.partition(":")
            if kind == "op" and value.is_floating_point() and value.numel() in sizes:
                yield text.ops[int(place.partition(":")[0])], value

    for place, op in enumerate(text.ops):
        types = [each for each in op.results if each is not None]
        if op.phase == "backward" or not any(each.numel(symbols) in sizes for each in types):
            continue
        batch.append(place)
        held += sum(each.numel(symbols) * each.dtype.itemsize for each in types)
        if held > _MOST_BYTES:
            yield from given(batch)
            batch, held = [], 0
    if batch:
        yield from given(batch)


def owner_of(text: GraphText, recorder: Recorder, names: Sequence[str]) -> str:
    """Returns "module 'a.b', file.py:12" of the named tensors. Among several it is the module
    called last, because gradients flow from the loss."""
    order = {call.path: number for number, call in enumerate(recorder.calls)}
    paths = [name.partition(":")[2].rpartition(".")[0] for name in names]
    path = max(paths, key=lambda each: order.get(each, -1), default="")
    source = next((op.source for op in text.ops if op.module == path and op.source), "")
    return f"module {path!r}{f', {source}' if source else ''}"


def _seen(value: Any) -> list[_Seen]:
    leaves = (each for each in tree_leaves(value) if isinstance(each, Tensor))
    return [_Seen(each) for each in leaves if each.is_floating_point() and each.numel()]


def _most(x: Tensor) -> float:
    """Returns the largest element, or infinity if all are NaN."""
    largest = float(x.abs().max())
    return largest if math.isfinite(largest) else math.inf
