"""The running module: the path of every captured op, and stable sites of random ops."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from medley.capture.errors import CaptureError

_LIBRARY = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(__file__) + os.sep
_INSTALLED = (
    os.path.dirname(os.path.dirname(torch.__file__)) + os.sep,
    sysconfig.get_path("stdlib"),
)
_OPS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "custom_ops.py")


def is_user_file(path: str) -> bool:
    """Returns whether a file belongs to the model rather than to PyTorch or Medley."""
    return not (
        path.startswith((_LIBRARY, _OURS, "<")) or path == _OPS or path.endswith("contextlib.py")
    )


def calling_line() -> str:
    """Returns "file.py:12", the innermost running line of the model, or ""."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if is_user_file(path):
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def forward_line(model: Any) -> str:
    """Returns "file.py:12", the definition of a function or of the forward of a module, or ""."""
    if isinstance(model, torch.jit.ScriptModule):
        found = re.search(r"([^\s/]+\.py:\d+)", str(getattr(model, "graph", "")))
        return found[1] if found else ""
    forward = inspect.unwrap(getattr(type(model), "forward", model))
    code = getattr(forward, "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else ""


@contextlib.contextmanager
def placed(model: Any) -> Iterator[None]:
    """Adds the line of forward to a CaptureError from the block, unless it names a line."""
    try:
        yield
    except CaptureError as error:
        if re.search(r"\.py:\d+", message := str(error)) or not (place := forward_line(model)):
            raise
        raise CaptureError(f"{place}: {message}") from None


def holders(name: str) -> list[Any]:
    """Returns the imported Python modules with an attribute of this name. Installed packages have
    thousands of modules. They are searched again only after a new import."""
    names = _looked_through(name, len(sys.modules), next(reversed(sys.modules)))
    modules = [sys.modules.get(each) for each in names]
    return [module for module in modules if name in getattr(module, "__dict__", ())]


@functools.lru_cache(maxsize=8)
def _looked_through(name: str, count: int, latest: str) -> list[str]:
    """Returns the modules with the name, and those that may still receive it."""
    found = []
    for module, value in list(sys.modules.items()):
        content = getattr(value, "__dict__", {})
        file = content.get("__file__")
        if name in content or not (isinstance(file, str) and file.startswith(_INSTALLED)):
            found.append(module)
    return found


class ModuleStack:
    """The paths of the modules whose forward is running, innermost last. `enter(path)`, if given,
    is entered and left with each module."""

    def __init__(self, enter: Callable[[str], AbstractContextManager[None]] | None = None) -> None:
        self._enter = enter
        self._paths: list[str] = []
        self._open: list[AbstractContextManager[None]] = []
        self._calls: dict[str, int] = {}
        self.failed = ""

    @property
    def path(self) -> str:
        """The path of the innermost running module, or "" for the root or outside of any."""
        return self._paths[-1] if self._paths else ""

    def site(self) -> int:
        """Returns a stable 31-bit site for the next random op of the running module."""
        count = self._calls.get(self.path, 0)
        self._calls[self.path] = count + 1
        digest = hashlib.sha256(f"{self.path}#{count}".encode()).digest()
        return int.from_bytes(digest[:4], "little") & 0x7FFFFFFF

    def push(self, path: str) -> None:
        if not self._paths:
            self._calls.clear()
        self._paths.append(path)
        if self._enter is not None:
            scope = self._enter(path)
            scope.__enter__()
            self._open.append(scope)

    def pop(self) -> None:
        self._paths.pop()
        if self._open:
            self._open.pop().__exit__(None, None, None)

    def clear(self) -> None:
        """Removes modules that an exception left running. `failed` becomes the innermost one."""
        self.failed = self.path
        while self._paths:
            # The exception may have removed the annotation already.
            with contextlib.suppress(KeyError):
                self.pop()

    def mark(self) -> tuple[list[str], dict[str, int]]:
        """Returns the running modules and their numbers of random ops, for `resumed`."""
        return list(self._paths), dict(self._calls)

    @contextlib.contextmanager
    def resumed(self, mark: tuple[list[str], dict[str, int]]) -> Iterator[None]:
        """Restores the modules and their random ops at `mark` inside the block."""
        before = self.mark()
        self._paths, self._calls = list(mark[0]), dict(mark[1])
        try:
            yield
        finally:
            self._paths = before[0]

    @contextlib.contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Tracks the forward of every submodule of `model` inside the block, by hooks."""
        handles: list[Any] = []
        try:
            for path, module in model.named_modules():
                handles.append(module.register_forward_pre_hook(self._before(path), prepend=True))
                handles.append(module.register_forward_hook(self._after))
            yield
        finally:
            self.clear()
            for handle in handles:
                handle.remove()

    def _before(self, path: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, arguments: Any) -> None:
            self.push(path)

        return hook

    def _after(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self.pop()
