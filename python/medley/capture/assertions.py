"""Checks of values, an `assert` or an `if` that only raises: there are no values while a graph is
captured, so nothing is raised, and they are no part of it. Inside a `try` that would catch the
error they choose what is computed: those are refused as any other question about values."""

from __future__ import annotations

import bisect
import dis
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from medley.capture.modules import is_user_file


def replacements() -> Mapping[Any, Callable[..., Any]]:
    """Returns what replaces the functions by which a check asks for values."""
    found: dict[Any, Callable[..., Any]] = {
        Tensor.item: functools.partial(_number, Tensor.item),
        Tensor.__bool__: functools.partial(_answer, Tensor.__bool__),
    }
    for ask in (torch.equal, Tensor.equal, torch.allclose, Tensor.allclose):
        found[ask] = functools.partial(_answer, ask)
    return found


def _number(function: Callable[..., Any], x: Tensor) -> Any:
    """In place of Tensor.item: inside a check the tensor itself, which can be compared too."""
    frame, asked_by = _model_frame()
    wanted, is_next = _asserted(frame)
    if asked_by == "__bool__" and is_next:  # tensors that are traced ask for a number, then
        return wanted
    return function(x) if asked_by or wanted is None else x.detach()


def _answer(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of what returns whether something holds: what lets the check pass."""
    wanted, is_next = _asserted(_model_frame()[0])
    return function(*args, **kwargs) if wanted is None or not is_next else wanted


def _model_frame() -> tuple[FrameType | None, str]:
    """Returns the innermost frame of the model, and what it called of a class of traced tensors."""
    frame: FrameType | None = sys._getframe(1)
    asked_by = ""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_name in ("__bool__", "__int__", "__float__"):
            asked_by = frame.f_code.co_name
        frame = frame.f_back
    return frame, asked_by


def _asserted(frame: FrameType | None) -> tuple[bool | None, bool]:
    """Returns which truth lets the check pass that a frame is computing, None outside of one;
    and whether it asks for the truth of what is computed right now."""
    if frame is None or _is_caught(frame):
        return None, False
    code, offsets = _instructions(frame.f_code)
    first = bisect.bisect_right(offsets, frame.f_lasti) - 1  # it may be in the cache behind one
    for at in range(first, len(code)):
        one = code[at]
        if one.opname.startswith(("STORE_", "RETURN_", "RAISE_", "FOR_ITER")):
            return None, False
        if "_JUMP_" in one.opname and "_IF_" in one.opname:
            jumps_if = one.opname.endswith("_TRUE")
            is_next = all(x.opname in _BETWEEN for x in code[first + 1 : at])
            if _fails(code, at + 1):
                return jumps_if, is_next
            if _fails(code, bisect.bisect_left(offsets, one.argval)):
                return not jumps_if, is_next
            return None, False
    return None, False


def _is_caught(frame: FrameType | None) -> bool:
    """Returns whether the model has a handler for what this frame raises, in it or in its callers.
    What `with` does at its end is none."""
    while frame is not None and Path(frame.f_code.co_filename).parent != _HERE:
        if is_user_file(frame.f_code.co_filename):
            code, offsets = _instructions(frame.f_code)
            for part in dis.Bytecode(frame.f_code).exception_entries:  # type: ignore[attr-defined]
                if part.start <= frame.f_lasti < part.end:
                    first = bisect.bisect_left(offsets, part.target)
                    if all(one.opname != "WITH_EXCEPT_START" for one in code[first : first + 2]):
                        return True
        frame = frame.f_back
    return False


_HERE = Path(__file__).parent
_BETWEEN = ("CACHE", "TO_BOOL", "NOT_TAKEN", "NOP")


def _fails(code: tuple[dis.Instruction, ...], at: int) -> bool:
    """Returns whether what starts at a place does nothing but raise an error."""
    for one in code[at:]:
        if one.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in one.opname or one.opname.startswith(("STORE_", "RETURN_", "RERAISE")):
            return False
    return False


@functools.lru_cache(maxsize=64)
def _instructions(code: CodeType) -> tuple[tuple[dis.Instruction, ...], list[int]]:
    """Returns the instructions of a function, and their offsets."""
    found = tuple(dis.get_instructions(code))
    return found, [each.offset for each in found]
