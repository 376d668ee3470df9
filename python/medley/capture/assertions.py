"""Checks of values: an `assert`, an `if` that only raises, or a call such as `torch._check`.
Capture has no values, so a check never raises and is not in the graph. Inside a `try` that would
catch the error, a check chooses the computation. Such a check is refused like any other use of
values."""

from __future__ import annotations

import ast
import bisect
import dis
import functools
import inspect
import itertools
import linecache
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor

from medley.capture.modules import is_user_file

# Functions that only raise, if their first argument is false.
_CHECKS = (
    torch._assert,
    torch._assert_scalar,
    torch._check,
    torch._check_index,
    torch._check_is_size,
    torch._check_not_implemented,
    torch._check_tensor_all,
    torch._check_tensor_all_with,
    torch._check_type,
    torch._check_value,
    torch._check_with,
)


def replacements(refused: list[Exception]) -> Mapping[Any, Callable[..., Any]]:
    """Returns replacements of the functions through which a check reads values. Errors that the
    model may catch are added to `refused`."""
    found: dict[Any, Callable[..., Any]] = {}
    for number in (Tensor.item, Tensor.tolist):
        found[number] = functools.partial(_number, number, refused)
    for ask in (
        Tensor.__bool__,
        Tensor.is_nonzero,
        torch.is_nonzero,
        torch.equal,
        Tensor.equal,
        torch.allclose,
        Tensor.allclose,
    ):
        found[ask] = functools.partial(_answer, ask, refused)
    return found


def dropped(
    refused: list[Exception], check: Callable[..., None], position: int = 0
) -> Callable[..., None]:
    """Returns the replacement of a call whose argument at `position` is a condition. A condition
    that is still a tensor belongs to a check that passes."""

    @functools.wraps(check)
    def replacement(*args: Any, **kwargs: Any) -> None:
        cond = args[position] if len(args) > position else kwargs.get("cond")
        if not isinstance(cond, Tensor):
            check(*args, **kwargs)
        elif _is_caught(_frames()[1]):
            _asked(check, refused, *args, **kwargs)

    return replacement


def _number(function: Callable[..., Any], refused: list[Exception], x: Tensor) -> Any:
    """Replaces Tensor.item. Inside a check it returns the tensor itself, which can be compared."""
    frame, model, asked_by = _frames()
    if _is_caught(model):
        return _asked(function, refused, x)
    wanted, is_next = _asserted(frame)
    of_call = _of_call(frame, model)
    if asked_by == "__bool__":  # traced tensors then call item()
        wanted = wanted if is_next else of_call
        return function(x) if wanted is None else wanted
    if asked_by or (wanted is None and of_call is None):
        return function(x)
    return x.detach()


def _answer(
    function: Callable[..., Any], refused: list[Exception], *args: Any, **kwargs: Any
) -> Any:
    """Replaces functions that return a truth value: returns the one that lets the check pass."""
    frame, model, _ = _frames()
    if _is_caught(model):
        return _asked(function, refused, *args, **kwargs)
    wanted, is_next = _asserted(frame)
    if wanted is None or not is_next:
        wanted = _of_call(frame, model)
    return function(*args, **kwargs) if wanted is None else wanted


def _asked(
    function: Callable[..., Any], refused: list[Exception], *args: Any, **kwargs: Any
) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        refused.append(error)
        raise


def _frames() -> tuple[FrameType | None, FrameType | None, str]:
    """Returns the calling frame, the innermost frame of the model, which may be the same, and the
    name of the called method of traced tensors."""
    frame: FrameType | None = sys._getframe(1)
    asking: FrameType | None = None
    asked_by = ""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_name in ("__bool__", "__int__", "__float__"):
            asked_by, asking = frame.f_code.co_name, None
        elif asking is None and Path(frame.f_code.co_filename).parent != _HERE:
            asking = frame
        frame = frame.f_back
    return asking or frame, frame, asked_by


def _of_call(*frames: FrameType | None) -> bool | None:
    """Returns the truth value that lets a check pass whose arguments one of these frames computes,
    or None outside of a check."""
    for frame in frames:
        if frame is None:
            continue
        places = itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
        line, end_line, column, end_column = next(places)
        if line is None or end_line is None or column is None or end_column is None:
            continue
        start, end = (line, column), (end_line, end_column)
        for call, first, last in _calls(frame.f_code.co_filename):
            if first <= start and end <= last and _is_check(call.func, frame):
                negations = (each for each in ast.walk(call) if isinstance(each, ast.UnaryOp))
                around = [each for each in negations if isinstance(each.op, ast.Not)]
                inside = [_span(each)[0] <= start and end <= _span(each)[1] for each in around]
                return sum(inside) % 2 == 0
    return None


_Place = tuple[int, int]  # line, and column in bytes


@functools.lru_cache(maxsize=64)
def _calls(file: str) -> list[tuple[ast.Call, _Place, _Place]]:
    """Returns the calls in a file with their start and end."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    return [(each, *_span(each)) for each in ast.walk(tree) if isinstance(each, ast.Call)]


def _span(node: ast.expr) -> tuple[_Place, _Place]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _is_check(function: ast.expr, frame: FrameType) -> bool:
    found = _named(function, frame)
    return callable(found) and any(
        inspect.unwrap(found) is inspect.unwrap(each) for each in _CHECKS
    )


def _named(function: ast.expr, frame: FrameType) -> Any:
    """Returns the value of a name, or of a module's attribute, in a frame; None for others."""
    if isinstance(function, ast.Name):
        return frame.f_locals.get(function.id, frame.f_globals.get(function.id))
    if isinstance(function, ast.Attribute):
        owner = _named(function.value, frame)
        return getattr(owner, function.attr, None) if isinstance(owner, ModuleType) else None
    return None


def _asserted(frame: FrameType | None) -> tuple[bool | None, bool]:
    """Returns the truth value that lets the current check of a frame pass, None outside of one, and
    whether the check uses the value that is being computed."""
    if frame is None:
        return None, False
    code, offsets = _instructions(frame.f_code)
    first = bisect.bisect_right(offsets, frame.f_lasti) - 1  # may be in the cache after one
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
    """Returns whether the model handles an exception of this frame, in the frame or in its callers.
    The end of `with` and a `finally` do not count."""
    while frame is not None and Path(frame.f_code.co_filename).parent != _HERE:
        if is_user_file(frame.f_code.co_filename):
            code, offsets = _instructions(frame.f_code)
            for part in dis.Bytecode(frame.f_code).exception_entries:  # type: ignore[attr-defined]
                if part.start <= frame.f_lasti < part.end:
                    first = bisect.bisect_left(offsets, part.target)
                    if _catches(code, first):
                        return True
        frame = frame.f_back
    return False


def _catches(code: tuple[dis.Instruction, ...], first: int) -> bool:
    """Returns whether the handler that begins at `first` may end an exception."""
    if any(one.opname == "WITH_EXCEPT_START" for one in code[first : first + 2]):
        return False
    ends = ("RERAISE", "POP_EXCEPT", "CHECK_EXC_MATCH", "CHECK_EG_MATCH")
    return next((one.opname for one in code[first:] if one.opname in ends), "") != "RERAISE"


_HERE = Path(__file__).parent
_BETWEEN = ("CACHE", "TO_BOOL", "NOT_TAKEN", "NOP")


def _fails(code: tuple[dis.Instruction, ...], at: int) -> bool:
    """Returns whether the code at `at` only raises an error."""
    for one in code[at:]:
        if one.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in one.opname or one.opname.startswith(("STORE_", "RETURN_", "RERAISE")):
            return False
    return False


@functools.lru_cache(maxsize=64)
def _instructions(code: CodeType) -> tuple[tuple[dis.Instruction, ...], list[int]]:
    """Returns the instructions of a function and their offsets."""
    found = tuple(dis.get_instructions(code))
    return found, [each.offset for each in found]
