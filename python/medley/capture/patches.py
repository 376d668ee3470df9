"""Replacement of functions: attributes of modules and classes, and calls of PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch.overrides import TorchFunctionMode

Patch = tuple[Any, str, Any]  # owner, name, replacement


@contextlib.contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """Activates replacements inside the block, each before the next one is made."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in patches:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


class Replacing(TorchFunctionMode):
    """Calls the replacement that a table has for a function, with `scope` around every call."""

    def __init__(
        self,
        table: Mapping[Any, Callable[..., Any]],
        scope: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        super().__init__()
        self._table, self._scope = table, scope

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with contextlib.suppress(TypeError):  # not hashable
            func = self._table.get(func, func)
        with self._scope():
            return func(*args, **(kwargs or {}))
