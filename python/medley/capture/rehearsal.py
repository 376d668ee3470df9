"""A rehearsal of the step before tracing, which finds unsupported behaviour on a few rows. Forward
and backward run on fake tensors twice, the second time from the state after the first. Forward runs
again with other rows. A graph runs no Python. The two runs must be identical, only buffers may
carry state between them, and the number of ops must not depend on the rows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from medley.capture.batch import Batch
from medley.capture.buffers import Place
from medley.capture.errors import ROWS_FIRST, CaptureError, RowsError, quiet
from medley.capture.gradient_hooks import gradient_hooks
from medley.capture.interception import Interceptor
from medley.capture.modules import ModuleStack, calling_line
from medley.capture.root import Root, fake_state, started
from medley.capture.side_doors import KEPT
from medley.capture.state import Attributes, RandomStates, Values, changes
from medley.capture.trace import choose_primes, source_of

# Numbers of rows, small enough for loops over them.
_FEW = [n for n in range(29, 128) if all(n % divisor for divisor in range(2, 12))]  # primes
# A trace may have _TIMES as many ops as a rehearsal, and some more. PyTorch decomposes some ops
# only in a trace. A loop over the rows has thousands of times as many.
_TIMES = 10
_MORE = 1000
_INSTEAD = "keep it in a buffer (register_buffer), or change it outside of forward"


def rehearse(
    model: nn.Module, batch: Batch, primes: Sequence[int], autocast: torch.dtype | None = None
) -> tuple[set[Place], int]:
    """Returns the buffers that forward reassigns, and the maximum number of ops of a trace. Raises
    CaptureError naming other state that changes from call to call or with the rows. A model that
    fails on so few rows is rehearsed on `primes`. Failures there are left to the trace."""
    few = choose_primes(model, batch, 2, _FEW)
    failed: list[tuple[str, Counter[str]]] = []  # line, and the ops before it
    for rows in (few, few[::-1], primes):
        randoms = RandomStates()
        calls: list[_Recorder] = []
        try:
            seen = _run(model, batch, rows, autocast, calls)
        except _RefusedError as error:
            raise CaptureError(str(error)) from None
        except Exception as error:
            failed.append((source_of(error), calls[0].places if calls else Counter()))
            if len(failed) == 2 and failed[0][0] == failed[1][0]:
                _check_places(few, failed[0][1], failed[1][1])
            continue
        finally:
            moved = randoms.moved()
            randoms.restore()
        _check(seen, moved)
        return seen.assigned, _most(calls[0].places)
    return set(), _most(failed[0][1])


def runs(model: nn.Module, batch: Batch, autocast: torch.dtype | None = None) -> bool:
    """Returns whether the model runs with the rows in the dims of the batch, for any number of
    rows."""
    randoms = RandomStates()
    try:
        few = choose_primes(model, batch, 2, _FEW)
        _check(_run(model, batch, few, autocast, []), randoms.moved())
    except Exception:
        return False
    finally:
        randoms.restore()
    return True


def _most(places: Counter[str]) -> int:
    return _TIMES * sum(places.values()) + _MORE


class _RefusedError(Exception):
    """Behaviour of a call that no graph can express."""


@dataclasses.dataclass(frozen=True)
class _Op:
    """An op that depends on parameters, buffers or the batch, without its tensors."""

    name: str
    literals: tuple[Any, ...]
    place: str = dataclasses.field(compare=False)


@dataclasses.dataclass
class _Mark:
    """The origin of a tensor: its call, or 0; whether it depends on parameters, buffers or the
    batch; and whether it depends on a tensor of the call before."""

    call: int
    follows: bool
    carried: bool = False


class _Recorder(TorchDispatchMode):
    """Records the ops of one call. Refuses unsupported ones before they run."""

    def __init__(self, call: int, names: _Names) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[_Op] = []
        self.places: Counter[str] = Counter()  # number of forward ops by place
        self.is_forward = True
        self._call = call
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # queries of tensor properties
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        place = calling_line()
        marks = [self._read(leaf, place) for leaf in leaves if isinstance(leaf, Tensor)]
        mark = _Mark(
            self._call,
            any(each.follows for each in marks),
            any(each.carried or self._is_before(each) for each in marks),
        )
        for tensor in _written(func, args, kwargs):
            self._write(tensor, mark, place)
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and not hasattr(leaf, "_medley_mark"):
                _set_mark(leaf, mark)
        if self.is_forward:  # one op may return a tensor per row
            tensors = sum(isinstance(leaf, Tensor) for leaf in tree_leaves(result))
            self.places[place] += max(1, tensors)
        if mark.follows:
            literals = tuple(_literal(leaf) for leaf in leaves if not isinstance(leaf, Tensor))
            self.ops.append(_Op(str(func), literals, place))
        return result

    def _is_before(self, mark: _Mark) -> bool:
        return mark.call not in (0, self._call)

    def _read(self, tensor: Tensor, place: str) -> _Mark:
        mark = _mark_of(tensor)
        if name := self._names.registered(tensor):
            raise _RefusedError(
                f"{_at(place)}the model uses its {name} otherwise than as the attribute of its "
                "module (from a list, a closure): it would stay as it is now"
            )
        if self._is_before(mark) and mark.follows:
            raise _RefusedError(
                f"{_at(place)}the model uses what the call before has left in "
                f"{self._names.owner(tensor)}: {_INSTEAD}"
            )
        return mark

    def _write(self, tensor: Tensor, by: _Mark, place: str) -> None:
        mark = _mark_of(tensor)
        if not isinstance(tensor, FakeTensor) or self._is_before(mark):
            raise _RefusedError(
                f"{_at(place)}the model changes {self._names.owner(tensor)} in place: {_INSTEAD}"
            )
        if name := self._names.parameter(tensor):
            raise _RefusedError(f"{_at(place)}the model changes its {name} in place: {KEPT}")
        mark.follows |= by.follows
        mark.carried |= by.carried


class _Names:
    """The names of tensors in messages."""

    def __init__(self, model: nn.Module) -> None:
        self.attributes: Attributes | None = None
        self._tensors: dict[int, str] = {}
        self._storages: dict[int, str] = {}
        self._fakes: dict[int, str] = {}
        for name, buffer in model.named_buffers(remove_duplicate=False):
            self._tensors[id(buffer)] = f"buffer {name!r}"
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._tensors[id(parameter)] = f"parameter {name!r}"
            if parameter.requires_grad:
                self._storages[parameter.untyped_storage()._cdata] = f"parameter {name!r}"

    def start(self, model: nn.Module) -> None:
        """Stores the stand-ins of trained parameters, which the model has now."""
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            self._fakes[parameter.untyped_storage()._cdata] = f"parameter {name!r}"

    def parameter(self, tensor: Tensor) -> str:
        """Returns the trained parameter whose stand-in shares memory with a tensor."""
        return self._fakes.get(tensor.untyped_storage()._cdata, "")

    def registered(self, tensor: Tensor) -> str:
        """Returns the parameter or buffer that a tensor itself is, instead of its stand-in."""
        if isinstance(tensor, FakeTensor):
            return ""
        storage = tensor.untyped_storage()._cdata
        return self._tensors.get(id(tensor)) or self._storages.get(storage, "")

    def owner(self, tensor: Tensor) -> str:
        """Returns the attribute that contains a tensor."""
        assert self.attributes is not None
        for (path, name), each in self.attributes.tensors():
            if each is tensor:
                return f"self.{name} of module {path!r}"
        return "a tensor outside of the modules"


def _at(place: str) -> str:
    return f"{place}: " if place else ""


def _mark_of(tensor: Tensor) -> _Mark:
    """Returns the mark of a tensor. A constant from before the first call has none."""
    mark: _Mark = getattr(tensor, "_medley_mark", _Mark(0, False))
    return mark


def _set_mark(tensor: Tensor | None, mark: _Mark) -> None:
    assert tensor is not None
    tensor._medley_mark = mark  # type: ignore[attr-defined]


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return found


def _literal(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else value  # a NaN equals itself


@dataclasses.dataclass(frozen=True)
class _Seen:
    """The results of the calls: two with the same rows, and possibly one with others."""

    rows: Sequence[int]
    calls: list[_Recorder]
    values: list[Values]  # before the first call, after it, after the second
    carried: str  # attribute with a tensor made from that of the call before
    assigned: set[Place]


def _run(
    model: nn.Module,
    batch: Batch,
    rows: Sequence[int],
    autocast: torch.dtype | None,
    calls: list[_Recorder],
) -> _Seen:
    """Runs the calls, and adds a recorder to `calls` for each one that it begins."""
    names, hooks = _Names(model), gradient_hooks(model)
    interceptor = Interceptor(ModuleStack(), rows[0])
    interceptor.has_pictures = batch.pictures is not None
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with (
        fake_state(model, mode),
        interceptor.modules.watch(model),
        quiet(),
        started(Root(model, batch, interceptor, hooks, autocast)) as root,
    ):
        names.attributes = root.attributes
        names.start(model)
        for tensor in (*model.parameters(), *model.buffers()):
            _set_mark(tensor, _Mark(0, True))
        values = [root.attributes.values()]
        for number, count in enumerate((rows[0], rows[0], rows[-1]), 1):
            if number == 3:
                root.restore()
            interceptor.prime = count
            calls.append(_Recorder(number, names))
            with mode, calls[-1]:
                loss = _forward(root, batch, count)
                calls[-1].is_forward = False
                if number < 3:
                    _backward(root, loss)
            for path, name in root.assigned:
                _set_mark(model.get_submodule(path)._buffers[name], _Mark(0, True))
            values.append(root.attributes.values())
            if number == 2:
                left = [
                    f"self.{name} of module {path!r}"
                    for (path, name), tensor in root.attributes.tensors()
                    if _mark_of(tensor).carried and _mark_of(tensor).call == 2
                ]
    return _Seen(rows, calls, values, next(iter(left), ""), root.assigned)


def _forward(root: Root, batch: Batch, rows: int) -> Tensor:
    rng = torch.empty(2, dtype=torch.int64)
    tensors = batch.empty(rows)
    for tensor in (rng, *tensors):
        _set_mark(tensor, _Mark(0, True))
    return root.rehearse(rng, *tensors)[0]


def _backward(root: Root, loss: Tensor) -> None:
    parameters = [each for each in root.parameters() if each.requires_grad]
    if loss.requires_grad and parameters:
        torch.autograd.grad(loss, parameters, allow_unused=True)


def _check(seen: _Seen, moved: list[str]) -> None:
    first, second, other = seen.calls
    if moved:
        raise CaptureError(
            f"the model draws from {moved[0]}: every step would use what is drawn now; use "
            "torch.nn.functional.dropout, or draw outside and pass the numbers in the batch"
        )
    before, after, later = seen.values[:3]
    if evolving := changes(after, later):
        (path, name) = evolving[0]
        shown = [_shown(values.get((path, name))) for values in (before, after, later)]
        raise CaptureError(
            f"module {path!r}: every call changes self.{name}{_series(shown)}: {_INSTEAD}"
        )
    if seen.carried:
        raise CaptureError(f"every call makes {seen.carried} from its value before: {_INSTEAD}")
    if first.ops != second.ops:
        raise CaptureError(_unlike(first.ops, second.ops, changes(before, after)))
    _check_places(seen.rows, first.places, other.places)


def _check_places(rows: Sequence[int], first: Counter[str], other: Counter[str]) -> None:
    """Raises CaptureError for ops whose number grows with the rows."""
    if sum(first.values()) != sum(other.values()):
        place = max(other, key=lambda each: abs(other[each] - first[each]))
        raise RowsError(
            f"{place}: a loop over the rows of the batch: found {first[place]} "
            f"tensors for {rows[0]} rows and {other[place]} for {rows[-1]}, expected as many for "
            f"any batch. {ROWS_FIRST}"
        )


def _shown(value: Any) -> str:
    shown = repr(value) if isinstance(value, (bool, int, float, str)) or value is None else ""
    return shown if len(shown) < 40 else ""


def _series(shown: list[str]) -> str:
    return f" ({', then '.join(shown)})" if all(shown) else ""


def _unlike(first: list[_Op], second: list[_Op], changed: list[Any]) -> str:
    pairs = zip([*first, None], [*second, None], strict=False)
    one, two = next((a, b) for a, b in pairs if a != b)
    shown = ["nothing more" if op is None else f"{op.name} at {op.place}" for op in (one, two)]
    literals = (
        ""
        if one is None or two is None or one.name != two.name
        else f" of {_shortly(one.literals)} and {_shortly(two.literals)}"
    )
    where = "".join(f", self.{name} of module {path!r}" for path, name in changed[:3])
    reason = f"the first call changes {where[2:]}" if where else "a clock, a counter, a file?"
    return (
        f"two calls on the same batch compute different things: {shown[0]}, then {shown[1]}"
        f"{literals} ({reason}): {_INSTEAD}"
    )


def _shortly(literals: tuple[Any, ...]) -> str:
    return f"({', '.join(str(each) for each in literals)})"
