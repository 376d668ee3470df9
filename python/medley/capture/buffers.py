"""Buffers that forward reassigns, `self.m = ...`, become buffers that it changes in place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from medley.capture.errors import CaptureError
from medley.capture.modules import calling_line
from medley.capture.patches import patched
from medley.capture.side_doors import KEPT

Place = tuple[str, str]  # path of the module, name of the buffer


class _Assigned(NamedTuple):
    place: Place
    store: dict[str, Any]
    new: Tensor


@contextlib.contextmanager
def kept(model: nn.Module, found: set[Place]) -> Iterator[None]:
    """Adds the buffers that the block reassigns to `found`. They keep their new values, detached
    from their inputs."""
    snapshot = _Snapshot(model)
    with snapshot.noted():
        yield
    for place, store, new in snapshot.assigned():
        store[place[1]] = new.detach()
        found.add(place)


@contextlib.contextmanager
def copied(model: nn.Module, places: set[Place]) -> Iterator[None]:
    """Lets the block reassign the buffers at `places`: copies replace them, and are written back at
    the end. Backward keeps the values saved from the copies."""
    originals = {}
    for path, name in sorted(places):
        store = model.get_submodule(path)._buffers
        original = originals[path, name] = store[name]
        assert original is not None
        store[name] = original.clone()
    snapshot = _Snapshot(model)
    with snapshot.noted():
        yield
    if unexpected := [place for place, _, _ in snapshot.assigned() if place not in places]:
        raise CaptureError(
            f"the model assigns its buffer {_join(*unexpected[0])!r} anew in some calls only"
        )
    with torch.no_grad():
        for (path, name), original in originals.items():
            store = model.get_submodule(path)._buffers
            new = store[name]
            assert original is not None and new is not None
            original.copy_(new.detach())
            store[name] = original


class _Snapshot:
    """The parameters and buffers of a model, to detect reassignments."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.named_modules())
        self._buffers = [dict(module._buffers) for _, module in self._modules]
        self._parameters = [dict(module._parameters) for _, module in self._modules]
        self.lines: dict[tuple[int, str], str] = {}  # lines that give a module a parameter

    def noted(self) -> AbstractContextManager[None]:
        """Records the lines inside the block that give modules parameters."""
        original = nn.Module.register_parameter

        def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
            self.lines[id(module), name] = calling_line()
            original(module, name, parameter)

        return patched([(nn.Module, "register_parameter", register)])

    def assigned(self) -> Iterator[_Assigned]:
        """Yields the reassigned buffers. Raises CaptureError for a parameter, and for a buffer
        whose type has changed."""
        for (path, module), before in zip(self._modules, self._parameters, strict=True):
            for name in _replaced(before, module._parameters):
                at = f"{line}: " if (line := self.lines.get((id(module), name))) else ""
                raise CaptureError(
                    f"{at}the model assigns its parameter {_join(path, name)!r} anew in forward: "
                    f"{KEPT}"
                )
        all_before = [tensor for store in self._buffers for tensor in store.values()]
        for (path, module), before in zip(self._modules, self._buffers, strict=True):
            for name in _replaced(before, module._buffers):
                old, new = before.get(name), module._buffers.get(name)
                if old is None:  # its first value; the rehearsal detects a further use
                    continue
                what = f"the model assigns its buffer {_join(path, name)!r} anew in forward"
                if new is None or new.shape != old.shape or new.dtype != old.dtype:
                    found = "None" if new is None else f"{new.dtype} of shape {list(new.shape)}"
                    raise CaptureError(
                        f"{what}: found {found}, expected {old.dtype} of shape {list(old.shape)} "
                        "as before"
                    )
                if sum(tensor is old for tensor in all_before) > 1:
                    raise CaptureError(f"{what}, which has a second name: change it in place")
                yield _Assigned((path, name), module._buffers, new)


def _replaced(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = [*before, *(name for name in after if name not in before)]
    return [name for name in names if before.get(name) is not after.get(name)]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
