"""State that a forward may change besides buffers: attributes of modules and random states. The
step of a captured graph runs no Python. State that would change from step to step is therefore
compared and restored."""

from __future__ import annotations

import collections
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_REGISTERED = ("_parameters", "_buffers")  # compared as tensors, not as attributes
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_DEEP = 8  # levels of nested containers
_LONG = 256  # elements of one container

Values = dict[tuple[str, str], Any]  # keyed by the path of a module and the name of an attribute


class Attributes:
    """The attributes of a model's modules besides parameters and buffers, at construction. These
    are numbers, texts, tensors, and containers and plain objects of them. Objects of other
    libraries are followed by their `__dict__`."""

    def __init__(self, model: nn.Module) -> None:
        self._named = list(model.named_modules())
        self._before: list[tuple[Any, Any]] = []  # container, copy of it
        self._random: list[tuple[Callable[[Any], Any], Any]] = []  # setter of a state, the state
        seen: set[int] = set()
        for _, module in self._named:
            self._remember(_attributes(module), seen, 0)

    def restore(self) -> None:
        for container, before in self._before:
            _refill(container, before)
        for put, state in self._random:
            put(state)

    def values(self) -> Values:
        """Returns the comparable value of each attribute, by the path of its module and its name.
        For a tensor it is type and sizes."""
        seen: dict[int, int] = {}
        return {
            (path, name): _comparable(value, seen, 0)
            for path, module in self._named
            for name, value in _attributes(module).items()
            if name not in _REGISTERED
        }

    def tensors(self) -> Iterator[tuple[tuple[str, str], Tensor]]:
        """Yields the tensors in attributes and buffers, with their modules' paths and names."""
        for path, module in self._named:
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    yield (path, name), buffer
            for name, value in _attributes(module).items():
                if name not in _REGISTERED:
                    for tensor in _tensors(value, set(), 0):
                        yield (path, name), tensor

    def _remember(self, value: Any, seen: set[int], depth: int) -> None:
        if id(value) in seen or depth > _DEEP:
            return
        seen.add(id(value))
        if (generator := _generator(value)) is not None:
            get, put = generator
            self._random.append((put, get()))
            return
        inside = _inside(value)
        if inside is None:
            return
        if isinstance(inside, (dict, list, set, collections.deque)):
            whole = dict(inside) if isinstance(inside, dict) else list(inside)
            self._before.append((inside, whole))
        for each in _elements(inside):
            self._remember(each, seen, depth + 1)


def changes(before: Values, after: Values) -> list[tuple[str, str]]:
    """Returns the keys whose values differ, in order."""
    keys = [*before, *(key for key in after if key not in before)]
    return [key for key in keys if before.get(key, _NONE) != after.get(key, _NONE)]


_NONE = ("nothing",)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return module.__dict__


def _inside(value: Any) -> Any:
    """Returns the container that `value` is or has, or None."""
    if isinstance(value, (dict, list, tuple, set, frozenset, collections.deque)):
        return value
    if isinstance(value, (Tensor, *_CODE)):
        return None
    return getattr(value, "__dict__", None)


def _elements(inside: Any) -> list[Any]:
    if len(inside) > _LONG:
        return []
    if isinstance(inside, dict):
        return [value for name, value in inside.items() if name not in _REGISTERED]
    return list(inside)


def _refill(container: Any, before: Any) -> None:
    if isinstance(container, dict):
        same = len(container) == len(before) and all(
            name in container and container[name] is value for name, value in before.items()
        )
        if not same:
            kind = (
                collections.OrderedDict if isinstance(container, collections.OrderedDict) else dict
            )
            kind.clear(container)
            kind.update(container, before)
    elif isinstance(container, set):
        container.clear()
        container.update(before)
    elif len(container) != len(before) or any(
        a is not b for a, b in zip(container, before, strict=True)
    ):
        container.clear()
        container.extend(before)


def _comparable(value: Any, seen: dict[int, int], depth: int) -> Any:
    if isinstance(value, float) and value != value:
        return "nan"  # NaN as a text equals itself
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype)):
        return value
    if isinstance(value, Tensor):
        return (str(value.dtype), *value.shape)
    if isinstance(value, _CODE):
        return getattr(value, "__qualname__", type(value).__name__)
    if id(value) in seen:
        return ("seen", seen[id(value)])
    seen[id(value)] = len(seen)
    if (generator := _generator(value)) is not None:
        return repr(generator[0]())
    inside = _inside(value)
    name = type(value).__name__
    if inside is None or depth > _DEEP:
        return name
    if len(inside) > _LONG:
        return (name, len(inside))
    if isinstance(inside, dict):
        items = [(str(key), inside[key]) for key in list(inside) if key not in _REGISTERED]
        return (name, *((key, _comparable(each, seen, depth + 1)) for key, each in items))
    if isinstance(inside, (set, frozenset)):
        return (name, len(inside))
    return (name, *(_comparable(each, seen, depth + 1) for each in inside))


def _tensors(value: Any, seen: set[int], depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    if id(value) in seen or depth > _DEEP or (inside := _inside(value)) is None:
        return
    seen.add(id(value))
    for each in _elements(inside):
        yield from _tensors(each, seen, depth + 1)


# --- random numbers -------------------------------------------------------------------------------


class RandomStates:
    """The random states of this process at construction."""

    def __init__(self) -> None:
        self._before = {name: get() for name, (get, _) in _global_generators().items()}

    def moved(self) -> list[str]:
        """Returns the names of the generators used since."""
        now = _global_generators()
        return [
            name for name, before in self._before.items() if repr(now[name][0]()) != repr(before)
        ]

    def restore(self) -> None:
        now = _global_generators()
        for name, state in self._before.items():
            now[name][1](state)


_Access = tuple[Callable[[], Any], Callable[[Any], Any]]  # getter and setter of the state


def _global_generators() -> dict[str, _Access]:
    found: dict[str, _Access] = {"Python's random": (random.getstate, random.setstate)}
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy.random"] = (
            lambda: _listed(numpy.random.get_state()),
            lambda state: numpy.random.set_state(tuple(state)),
        )
    found["torch's random numbers"] = (
        lambda: torch.get_rng_state().tolist(),
        lambda state: torch.set_rng_state(torch.tensor(state, dtype=torch.uint8)),
    )
    return found


def _listed(state: Any) -> list[Any]:
    """Returns the state of numpy with its array as a list, whose repr is complete."""
    return [part.tolist() if hasattr(part, "tolist") else part for part in state]


def _generator(value: Any) -> _Access | None:
    """Returns getter and setter of the state of a random generator, or None for other values."""
    if isinstance(value, random.Random):
        return value.getstate, value.setstate
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    if isinstance(value, numpy.random.RandomState):
        return lambda: _listed(value.get_state()), lambda state: value.set_state(tuple(state))
    return None
