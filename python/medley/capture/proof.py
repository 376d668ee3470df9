"""Comparison of a graph with its model on a few rows of real values: outputs, buffers, gradients.
The model runs unchanged, except that random functions are replaced (draws.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from medley import custom_ops, quantized
from medley.ambient import own_state
from medley.capture import gradient_hooks, interception, other_values
from medley.capture.batch import Batch, loss_of, read_batch, reported
from medley.capture.draws import substitute
from medley.capture.errors import CaptureError, quiet
from medley.capture.gaps import Values, agree, gap_of, gap_text, is_same, threads
from medley.capture.graph_text import GraphText
from medley.capture.parting import Recorder, first_parting, owner_of
from medley.capture.root import replaced_state
from medley.capture.sequences import without_blanks
from medley.capture.state import Attributes, RandomStates
from medley.data.pictures import Pictures

ROWS = 4
_LARGE = 10_000_000  # parameters from which two rows suffice
_MOST_FLOPS = 2e13  # over all runs: minutes on a few cores
_FEW_FLOPS = 1e9  # below this one thread is the fastest
_SEED, _STEP = 20, 26


class _UnableError(Exception):
    """The reason why a graph cannot be compared with the model here."""


@dataclasses.dataclass(frozen=True)
class Precision:
    """The arithmetic of both sides: as given, in float64, or with weights rounded differently."""

    double: bool = False
    rounded: float = 0.0

    def of(self, tensor: Tensor) -> Tensor:
        """Returns the copy of a parameter, buffer or batch tensor in this precision."""
        tensor = tensor.detach()
        if not tensor.is_floating_point():
            return tensor.clone()
        if self.rounded:
            signs = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape) % 3 - 1
            return tensor * (1 + self.rounded * signs).to(tensor.dtype)
        return tensor.to(torch.float64, copy=True) if self.double else tensor.clone()


_AS_IT_IS = Precision()
_DOUBLE = Precision(double=True)


def prove(
    model: nn.Module,
    example_batch: Any,
    graph: str,
    constants: Mapping[str, Tensor],
    autocast: torch.dtype | None = None,
    however_large: bool = False,
    rows: Mapping[str, int | None] | None = None,
    pictures: Pictures | None = None,
    carry: Mapping[str, str] = MappingProxyType({}),
    train: Callable[[Values], Values] | None = None,
) -> str:
    """Compares a graph with its model on a few rows of the example, then with other values. `rows`:
    the dims of the rows by name.

    `train` makes a step of two equal micro-batches, each a batch of its own, from the tensors of a
    batch by name. Its loss and gradients are then compared with the mean of both micro-batches in
    plain PyTorch.

    Returns "" or the reason why they cannot be compared. The model stays unchanged. Raises
    CaptureError naming the first module whose output differs in the graph.
    """
    batch = read_batch(example_batch, rows, pictures)
    with quantized.as_buffers(model), own_state(), _left_as_it_was(model), quiet():
        try:
            pair = _Pair(model, batch, GraphText(graph), constants, autocast, carry)
            flops = pair.require_room(however_large)
            with threads(1 if flops < _FEW_FLOPS else torch.get_num_threads()):
                pair.compare_microbatches(train) if train else pair.compare_all()
        except _UnableError as error:
            return str(error)
    return ""


@contextlib.contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    attributes, randoms = Attributes(model), RandomStates()
    buffers = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        attributes.restore()
        for store, before in buffers:
            store.clear()
            store.update(before)
        randoms.restore()


class _Pair:
    """Both sides on the device of the model. Under autocast it is the CPU, whose list of cast ops
    is that of the graph."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        text: GraphText,
        constants: Mapping[str, Tensor],
        autocast: torch.dtype | None,
        carry: Mapping[str, str],
    ) -> None:
        self._model = model
        self._carry = carry
        self._batch = batch
        self._text = text
        self._autocast = autocast
        self._hooks = gradient_hooks.gradient_hooks(model)
        state = dict(model.named_parameters()) | dict(model.named_buffers())
        for what, held in (
            ("its parameters have", [*state.values(), *constants.values()]),
            ("its batch has", batch.tensors),
        ):
            if any(each.is_meta or isinstance(each, FakeTensor) for each in held):
                raise _UnableError(f"{what} no values")
        places = {each.device for each in model.parameters()}
        if len(places) > 1:
            raise _UnableError("its parameters are on several devices")
        self._device = next(iter(places), torch.device("cpu"))
        if autocast is not None or self._device.type not in ("cpu", "cuda"):
            self._device = torch.device("cpu")
        self._state = state
        self._constants = constants
        self._unchanged: dict[int, Tensor] = {}  # copies of parameters, by the id of the original
        self._require_inputs(state, constants)
        first = {id(each): name for name, each in state.items()}
        names = model.named_parameters, model.named_buffers
        every = (each for named in names for each in named(remove_duplicate=False))
        self._same = {name: first[id(each)] for name, each in every}
        self._trained = [name for name, p in model.named_parameters() if p.requires_grad]
        if frozen := set(text.trained) - set(self._trained):
            raise _UnableError(f"the graph trains {min(frozen)!r}, which the model does not")
        count = sum(each.numel() for each in state.values())
        self._rows = min(ROWS if count < _LARGE else 2, max(2, batch.rows))
        self._eps = torch.finfo(text.coarsest()).eps

    def _require_inputs(self, state: Values, constants: Mapping[str, Tensor]) -> None:
        """Raises _UnableError if the graph has other inputs than these."""
        known = {
            f"batch:{n}": t for n, t in zip(self._batch.names, self._batch.tensors, strict=True)
        }
        for name, type_ in self._text.inputs.items():
            kind, _, short = name.partition(":")
            if kind == "scalar":
                continue
            tensor = known.get(name) if kind == "batch" else state.get(short, constants.get(short))
            if tensor is None:
                raise _UnableError(f"there is no {kind} {short!r} beside the graph")
            fixed = [int(size) if size.isdigit() else -1 for size in type_.sizes]
            shape = [
                now if size < 0 else size for now, size in zip(tensor.shape, fixed, strict=False)
            ]
            if tensor.dtype != type_.dtype or list(tensor.shape) != shape:
                raise _UnableError(
                    f"{kind} {short!r} is {tensor.dtype} of shape {list(tensor.shape)}, the graph "
                    f"has {type_.dtype} of shape [{', '.join(type_.sizes)}]"
                )

    def require_room(self, however_large: bool) -> float:
        """Returns the approximate number of operations of the comparison. Raises _UnableError if
        they take minutes, or more memory than this machine has."""
        sizes = self._symbols(other_values.few_rows(self._batch, self._rows))
        self._require_memory(4, 1, sizes)
        work = 12 * self._text.flops(sizes)  # forward and backward, both sides, both batches
        if work > _MOST_FLOPS and not however_large:
            raise _UnableError(f"it takes about {work:.0e} operations; check=True does it")
        return work

    def _require_memory(self, states: int, results: int, sizes: Mapping[str, int]) -> None:
        """Raises _UnableError if `states` times the parameters and buffers, and `results` times the
        forward results exceed the memory of this machine."""
        from medley.checkpoint import available_memory

        state = sum(each.numel() * each.element_size() for each in self._state.values())
        needed = states * state + results * self._text.bytes(sizes)
        available = available_memory() if self._device.type == "cpu" else math.inf
        if needed > available / 2:
            raise _UnableError(
                f"it takes about {needed / 2**30:.1f} GiB beside what there is, and "
                f"{available / 2**30:.1f} GiB are available"
            )

    def compare_all(self) -> None:
        """Compares on the example, and on one batch of other values that the model accepts."""
        while True:
            tensors = other_values.few_rows(self._batch, self._rows)
            try:
                self._compare(tensors, "the example batch", may_be_odd=False)
                break
            except _UnableError:
                if self._rows >= self._batch.rows:
                    raise
            self._rows = self._batch.rows  # the model may need all of them
        for what, changed in other_values.others(self._batch, tensors):
            try:
                self._compare(changed, f"the example batch {what}", may_be_odd=True)
                return
            except _OddError:  # the model does not accept such values
                continue

    def _compare(self, tensors: list[Tensor], what: str, may_be_odd: bool) -> None:
        """Raises CaptureError if both sides differ. With `may_be_odd` it raises _OddError if the
        model fails on the batch or returns NaN."""
        try:
            found = self._of_graph(tensors, _AS_IT_IS)
        except (IndexError, RuntimeError):  # an index outside the rows or classes
            if may_be_odd:
                raise _OddError from None
            raise
        wanted, changed = self._of_model(tensors, _AS_IT_IS, found, may_be_odd)
        if may_be_odd and not wanted["loss"].isfinite().all():
            raise _OddError
        if changed:
            raise self._refused(tensors, what, wanted, found, changed)
        factor = 256 if self._eps < 1e-4 else 8
        near = 0.05 if self._eps < 1e-4 else 0.25
        suspects, wrong = [], []
        names = sorted(wanted.keys() | found.keys(), key=lambda name: name.startswith("g"))
        with threads(1):  # a part in the cache is faster with one thread
            gaps = {name: gap_of(wanted.get(name), found.get(name)) for name in names}
        scale = max((gaps[name][1] for name in names if name.startswith("gradient:")), default=0.0)
        for name, (gap, size) in gaps.items():
            if not gap <= factor * self._eps * size:
                suspects.append(name)
                floor = 1e3 * self._eps * scale if name.startswith("gradient:") else 0.0
                # A count is discontinuous under rounding; float64 decides.
                if not gap <= near * size + floor and not name.startswith("metric:"):
                    wrong.append(name)
        if not suspects:
            return
        if wrong or not self._is_rounding(tensors, wanted, found, suspects):
            raise self._refused(tensors, what, wanted, found, suspects)

    def _is_rounding(
        self, tensors: list[Tensor], wanted: Values, found: Values, suspects: Sequence[str]
    ) -> bool:
        """Returns whether rounding explains the difference: both sides agree in float64, or differ
        by no more than the model does with its weights rounded differently."""
        self._unchanged.clear()
        self._require_memory(8, 2, self._symbols(tensors))  # in float64
        left = list(suspects)
        with contextlib.suppress(Exception):
            exact = self._of_graph(tensors, _DOUBLE)
            precise, _ = self._of_model(tensors, _DOUBLE, exact)
            sizes = [gap_of(precise[name], None)[1] for name in precise if name.startswith("g")]
            scale = max(sizes, default=0.0)
            left = [name for name in left if not agree(name, precise, exact, scale)]
        for _ in range(1 if left else 0):
            rounded = dataclasses.replace(_AS_IT_IS, rounded=self._eps)
            moved, _ = self._of_model(tensors, rounded, found)
            left = [
                name
                for name in left
                if not gap_of(wanted.get(name), found.get(name))[0]
                <= 8 * gap_of(wanted.get(name), moved.get(name))[0]
                + 16 * self._eps * gap_of(wanted.get(name), None)[1]
            ]
        return not left

    def compare_microbatches(self, train: Callable[[Values], Values]) -> None:
        """Raises CaptureError if a step of two micro-batches is not the mean of both."""
        if "scalar:rng" in self._text.inputs:
            raise _UnableError("its random numbers follow the place in the whole batch")
        halves = [other_values.few_rows(self._batch, 2, first) for first in (0, 2)]
        whole = other_values.few_rows(self._batch, 4)
        found = train(dict(zip(self._batch.names, whole, strict=True)))
        one, _ = self._of_model(halves[0], _AS_IT_IS, found)
        for name in (each for each in self._state if f"buffer:{each}" in one):
            before, left = self._state[name], one.pop(f"buffer:{name}")  # for the second half
            is_parameter = isinstance(before, nn.Parameter)
            self._unchanged[id(before)] = nn.Parameter(left, False) if is_parameter else left
        two, _ = self._of_model(halves[1], _AS_IT_IS, found)
        wanted = {n: (one[n] + each) / 2 if n in one else each for n, each in two.items()}
        gaps = {name: gap_of(wanted[name], found[name]) for name in wanted if name in found}
        scale = max(size for name, (_, size) in gaps.items() if not name.startswith("buffer:"))
        far = [n for n, (gap, size) in gaps.items() if gap > 0.01 * size + 1e3 * self._eps * scale]
        if not far:
            return
        far.sort(key=lambda name: gaps[name][0] / max(gaps[name][1], 1e-30), reverse=True)
        gradients = [name for name in far if name.startswith("gradient:")]
        place = owner_of(self._text, Recorder(), gradients[:1] or far)
        raise CaptureError(
            f"{place}: two micro-batches, each a batch of its own, compute something else than "
            f"their mean in PyTorch: {gap_text(far[0], wanted[far[0]], found[far[0]])}. "
            "Please report it"
        )

    # --- the two sides ---

    def _symbols(self, tensors: Sequence[Tensor]) -> dict[str, int]:
        found = {"b": self._rows}
        for name, tensor in zip(self._batch.names, tensors, strict=True):
            type_ = self._text.inputs.get(f"batch:{name}")
            for size, actual in zip(type_.sizes if type_ else (), tensor.shape, strict=False):
                if size in self._text.symbols:
                    found[size] = actual
        return found

    def _of_graph(
        self, tensors: Sequence[Tensor], precision: Precision, watched: Sequence[int] = ()
    ) -> Values:
        from medley import _runtime

        symbols = self._symbols(tensors)
        runner = _runtime.GraphRunner(
            self._text.in_double() if precision.double else self._text.text,
            [symbols[each] for each in self._text.symbols],
            str(self._device),
            *([set(watched)] if watched else []),
        )
        batch = dict(zip(self._batch.names, tensors, strict=True))
        inputs = {}
        for name in self._text.inputs:
            kind, _, short = name.partition(":")
            source: Mapping[str, Tensor] = batch
            if kind == "scalar":
                inputs[name] = custom_ops.make_rng(_SEED, _STEP).to(self._device)
                continue
            if kind != "batch":
                source = self._constants if short in self._constants else self._state
                short = self._same.get(short, short)
            tensor = source[short].detach()
            inputs[name] = (precision.of(tensor) if precision.double else tensor).to(self._device)
        return dict(runner.run(inputs))

    def _of_model(
        self,
        tensors: Sequence[Tensor],
        precision: Precision,
        found: Values,
        may_be_odd: bool = False,
        recorder: Recorder | None = None,
    ) -> tuple[Values, list[str]]:
        """Returns the model's values for all that the graph has `found`, and the parameters that
        forward changes."""

        unchanged, self._unchanged = self._unchanged, {}

        def copied(tensor: Tensor) -> Tensor:
            if isinstance(tensor, nn.Parameter) and type(tensor) is not nn.Parameter:
                return tensor  # packed weights
            if precision == _AS_IT_IS and id(tensor) in unchanged:
                return unchanged[id(tensor)]
            copy = precision.of(tensor).to(self._device)
            is_parameter = isinstance(tensor, nn.Parameter)
            return nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy

        given = dict(zip(self._batch.names, tensors, strict=True))
        if self._batch.pictures is not None:
            given = self._batch.pictures.stripped(given)
        batch = [precision.of(each).to(self._device) for each in given.values()]
        with replaced_state(self._model, copied), _left_as_it_was(self._model):
            parameters = dict(self._model.named_parameters())
            handles = gradient_hooks.attach(self._model, self._hooks)
            try:
                with self._called(precision, recorder):
                    result, loss = self._called_with(batch, found, may_be_odd)
            finally:
                for handle in handles:
                    handle.remove()
            changed = self._changed(parameters, found) if precision == _AS_IT_IS else []
            wanted = {"loss": loss.detach()}
            outputs = reported(result, lambda name: f"metric:{name}" in found, self._carry)
            for name, output in outputs.items():
                if f"metric:{name}" in found:
                    wanted[f"metric:{name}"] = output.detach()
            moved = [(n, each) for n, each in parameters.items() if f"buffer:{n}" in found]
            for name, buffer in (*self._model.named_buffers(), *moved):
                known = self._state.get(name)
                is_new = known is None or (buffer.shape == known.shape and buffer.equal(known))
                if f"buffer:{name}" in found or not (is_new or precision != _AS_IT_IS):
                    wanted[f"buffer:{name}"] = buffer.detach()
            for name in self._trained:
                gradient = parameters[name].grad
                if gradient is not None:
                    wanted[f"gradient:{name}"] = gradient.to_dense()
            for copy in self._unchanged.values():
                copy.grad = None
        return wanted, changed

    def _changed(self, parameters: Mapping[str, Tensor], found: Values) -> list[str]:
        """Returns the parameters that forward changes, but not the graph. Keeps copies of all
        others for the next call."""
        changed = []
        for name in (each for each in parameters if f"buffer:{each}" not in found):
            before, now = self._state[name], parameters[name]
            if not is_same(before.to(self._device), now):
                changed.append(f"parameter:{name}")
            elif now is not before and now.requires_grad == before.requires_grad:
                self._unchanged[id(before)] = now
        return changed

    def _called_with(
        self, batch: Sequence[Tensor], found: Values, may_be_odd: bool
    ) -> tuple[Any, Tensor]:
        """Returns the output of the model and its loss. The gradients are in the parameters."""
        try:
            result = self._batch.call(self._model, batch)
            loss = _loss_beside(result, found)
            replaces = "medley.random" in self._text.text  # a mode replaces PyTorch's random ops
            # Autograd adds gradients in place only without a mode.
            with contextlib.nullcontext() if replaces else _disable_current_modes():
                if loss.requires_grad:
                    loss.backward()  # type: ignore[no-untyped-call]
            return result, loss
        except Exception as error:
            if may_be_odd:
                raise _OddError from None
            message = " ".join(str(error).split())[:200]
            raise _UnableError(
                f"the model fails on {self._rows} rows: {type(error).__name__}: {message}"
            ) from None

    @contextlib.contextmanager
    def _called(self, precision: Precision, recorder: Recorder | None) -> Iterator[None]:
        """Wraps a call of the model."""
        default = torch.get_default_dtype()
        with contextlib.ExitStack() as stack:
            stack.enter_context(interception.uncompiled())
            stack.enter_context(interception.on_one_device(self._device))
            stack.enter_context(without_blanks())
            if precision.double:
                stack.callback(torch.set_default_dtype, default)
                torch.set_default_dtype(torch.float64)
                stack.enter_context(_Doubled())
            elif self._autocast is not None:
                stack.enter_context(torch.autocast(self._device.type, self._autocast))
            if recorder is not None:
                stack.enter_context(recorder.watch(self._model))
            stack.enter_context(substitute(self._model, _SEED, _STEP))
            yield

    # --- the error ---

    def _refused(
        self,
        tensors: list[Tensor],
        what: str,
        wanted: Values,
        found: Values,
        names: Sequence[str],
    ) -> CaptureError:
        recorder = Recorder()
        with contextlib.suppress(Exception):
            self._of_model(tensors, _AS_IT_IS, found, recorder=recorder)
        known = [*tensors, *self._state.values(), *self._constants.values()]
        place = first_parting(
            self._text,
            self._symbols(tensors),
            recorder,
            lambda watched: self._of_graph(tensors, _AS_IT_IS, watched),
            [each.to(self._device) for each in known if each.is_floating_point()],
            names,
            1e3 * self._eps,
        )
        figures = ""
        if names and names[0] in wanted | found:
            figures = f" {gap_text(names[0], wanted.get(names[0]), found.get(names[0]))}"
        if any(name.startswith("parameter:") for name in names):
            figures = f" the model changes its {names[0].replace(':', ' ')!s} in forward"
        return CaptureError(
            f"{place}: the graph computes something else than the model, on {what}:{figures}. "
            "Please report it; check=False takes the graph as it is"
        )


class _OddError(Exception):
    """A batch that the model cannot take, or for which it returns NaN."""


class _Doubled(TorchFunctionMode):
    """Computes in float64 if a function receives another floating type."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [_double(each) for each in args]
        kwargs = {name: _double(each) for name, each in (kwargs or {}).items()}
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            func = Tensor.double
        return func(*args, **kwargs)


def _double(value: Any) -> Any:
    is_floating = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if is_floating else value


def _loss_beside(result: Any, found: Values) -> Tensor:
    """Returns the loss in the output of a model. For (loss sum, normaliser), whose first element
    may be the loss, it is the reading closer to the graph's value."""
    loss = loss_of(result)
    if not isinstance(loss, tuple):
        return loss
    graph = float(found["loss"])
    return min(loss[0] / loss[1], loss[0], key=lambda x: abs(float(x.detach()) - graph))
