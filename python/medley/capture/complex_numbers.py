"""Complex tensors in a traced graph as pairs of real ones, because devices compute them
differently. Each op on complex tensors is replaced by ops on real and imaginary parts, a Fourier
transform by matmuls with cosines and sines. Complex inputs (parameters, buffers, the batch) and ops
without a rule stay, and are refused when the graph is written."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

aten = torch.ops.aten
Pair = tuple[Any, Any]  # nodes; the imaginary part may be a number, or None for zero

# Longest Fourier transform. Its matrices have the square of this length.
_LONGEST = 2048
_REAL = {torch.complex128: torch.float64, torch.complex64: torch.float32}


def lower(module: GraphModule) -> list[str]:
    """Replaces the complex tensors of a traced graph. If some ops have no rule it changes nothing
    and returns them."""
    touched = [node for node in module.graph.nodes if _touches(node)]
    if without := [node for node in touched if not _has_rule(node)]:
        inputs = "parameters, buffers or the batch"
        named = [str(node.target) if node.op == "call_function" else inputs for node in without]
        return sorted(set(named))
    writer = _Writer(module)
    for node in touched:
        writer.replace(node)
    for node in reversed(touched):
        module.graph.erase_node(node)
    return []


def _is_complex(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_is_complex(each) for each in value)
    return isinstance(value, Tensor) and value.dtype.is_complex


def _touches(node: Node) -> bool:
    if node.op == "output":
        return False
    return any(_is_complex(each.meta.get("val")) for each in (node, *node.all_input_nodes))


def _has_rule(node: Node) -> bool:
    if node.op != "call_function":
        return node.op == "get_attr"
    name = _name(node)
    if name == "pow":
        return node.args[1] in (1, 2)
    if name == "masked_fill":
        return not isinstance(node.args[2], Node)
    if name == "copy":
        dtype = node.meta["val"].dtype
        return all(each.meta["val"].dtype == dtype for each in node.all_input_nodes)
    if name == "constant_pad_nd":
        return not any(node.args[2:])
    if name.startswith("_fft_"):
        (x,) = node.all_input_nodes
        dims = node.args[1]
        assert isinstance(dims, (list, tuple))
        return all(each.meta["val"].shape[dim] <= _LONGEST for each in (x, node) for dim in dims)
    return node.target is operator.getitem or name in _RULES or name in _OF_BOTH


def _name(node: Node) -> str:
    return str(getattr(node.target, "_opname", ""))


class _Writer:
    """Writes real ops before the node that they replace."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._pairs: dict[Node, Any] = {}  # the pair of a list is two lists
        self.node: Node | None = None

    def replace(self, node: Node) -> None:
        self.node = node
        with self._module.graph.inserting_before(node):
            found = self._replacement(node)
        if _is_complex(node.meta["val"]):
            self._pairs[node] = found
        else:
            node.replace_all_uses_with(found)

    def _replacement(self, node: Node) -> Any:
        if node.op == "get_attr":
            return self._constant(node)
        if node.target is operator.getitem:
            real, imaginary = self._pairs[node.args[0]]  # type: ignore[index]
            return self.call(operator.getitem, real, node.args[1]), self.call(
                operator.getitem, imaginary, node.args[1]
            )
        if (name := _name(node)) in _OF_BOTH:
            return tuple(self._of(part, node) for part in (0, 1))
        return _RULES[name](self, *node.args, **node.kwargs)

    def _of(self, part: int, node: Node) -> Node:
        """Returns the op of a node on one part of its operands. Integers are positions or
        indices."""

        def chosen(each: Node) -> Any:
            value = each.meta["val"]
            if _is_complex(value):
                return self.whole(each)[part]
            is_zero = part == 1 and value.is_floating_point()
            return self.call(aten.zeros_like.default, each) if is_zero else each

        return self.call(node.target, *map_arg(node.args, chosen), **map_arg(node.kwargs, chosen))

    def _constant(self, node: Node) -> Pair:
        value: Any = self._module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        assert isinstance(value, Tensor)
        return self.constant(value.real), self.constant(value.imag)

    def constant(self, value: Tensor) -> Node:
        name = f"_part{len(self._module._buffers)}"
        self._module.register_buffer(name, value.clone())
        node = self._module.graph.get_attr(name)
        node.meta["val"] = value
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Writes an op at the place of the replaced node."""
        assert self.node is not None
        node = self._module.graph.call_function(target, args, kwargs)
        node.meta = {
            key: value
            for key, value in self.node.meta.items()
            if key in ("custom", "partitioner_tag")
        }
        with torch.no_grad():
            node.meta["val"] = target(*map_arg(args, _value), **map_arg(kwargs, _value))
        return node

    def pair(self, x: Any) -> Pair:
        """Returns the parts of a node or a number. The imaginary part is None for zero."""
        if isinstance(x, Node):
            pair: Pair = self._pairs.get(x, (x, None))
            return pair
        return (x.real, x.imag or None) if isinstance(x, complex) else (x, None)

    def whole(self, x: Any) -> Pair:
        """Returns the parts of a complex node, both in its shape."""
        shape = list(x.meta["val"].shape)
        real, imaginary = self._pairs[x]
        if not isinstance(imaginary, Node):
            imaginary = self.call(aten.full_like.default, real, imaginary or 0.0)
        return tuple(  # type: ignore[return-value]
            part
            if list(part.meta["val"].shape) == shape
            else self.call(aten.expand.default, part, shape)
            for part in (real, imaginary)
        )

    # --- arithmetic: None is zero ---

    def add(self, x: Any, y: Any, alpha: Any = 1) -> Any:
        if y is None:
            return x
        if alpha != 1:
            y = self.mul(y, alpha)
        if x is None:
            return y
        return self.call(aten.add.Tensor, *((x, y) if isinstance(x, Node) else (y, x)))

    def sub(self, x: Any, y: Any) -> Any:
        if y is None or x is None:
            return x if y is None else self.mul(y, -1.0)
        return self.call(aten.sub.Tensor, x, y) if isinstance(x, Node) else self.add(x, y, -1)

    def mul(self, x: Any, y: Any, by: Any = aten.mul.Tensor) -> Any:
        if x is None or y is None:
            return None
        if not isinstance(x, Node) and not isinstance(y, Node):
            return x * y
        return self.call(by, *((x, y) if isinstance(x, Node) else (y, x)))

    def div(self, x: Any, y: Any) -> Any:
        if x is None:
            return None
        if isinstance(x, Node):
            return self.call(aten.div.Tensor, x, y)
        return self.mul(self.call(aten.reciprocal.default, y), x)


def _value(node: Node) -> Any:
    return node.meta["val"]


# --- rules: the parts of the result of an op, or its real result ----------------------------------


def _polar(to: _Writer, radius: Node, angle: Node) -> Pair:
    cos, sin = to.call(aten.cos.default, angle), to.call(aten.sin.default, angle)
    return to.mul(radius, cos), to.mul(radius, sin)


def _product(to: _Writer, x: Any, y: Any, by: Any = aten.mul.Tensor) -> Pair:
    (a, b), (c, d) = to.pair(x), to.pair(y)
    real = to.sub(to.mul(a, c, by), to.mul(b, d, by))
    return real, to.add(to.mul(a, d, by), to.mul(b, c, by))


def _sum(to: _Writer, x: Any, y: Any, alpha: Any = 1) -> Pair:
    (a, b), (c, d) = to.pair(x), to.pair(y)
    return to.add(a, c, alpha), to.add(b, d, alpha)


def _quotient(to: _Writer, x: Any, y: Any) -> Pair:
    (a, b), (c, d) = to.pair(x), to.pair(y)
    if d is None:
        return to.div(a, c), to.div(b, c)
    square = to.add(to.mul(c, c), to.mul(d, d))
    real = to.add(to.mul(a, c), to.mul(b, d))
    return to.div(real, square), to.div(to.sub(to.mul(b, c), to.mul(a, d)), square)


def _negative(to: _Writer, z: Node) -> Pair:
    a, b = to.pair(z)
    return to.mul(a, -1.0), to.mul(b, -1.0)


def _conjugate(to: _Writer, z: Node) -> Pair:
    a, b = to.pair(z)
    return a, to.mul(b, -1.0)


def _abs(to: _Writer, z: Node) -> Any:
    return to.call(aten.hypot.default, *to.whole(z))


def _sign(to: _Writer, z: Node) -> Pair:
    size = _abs(to, z)
    is_zero = to.call(aten.eq.Scalar, size, 0)
    size = to.call(aten.masked_fill.Scalar, size, is_zero, 1)
    a, b = to.whole(z)
    return to.div(a, size), to.div(b, size)


def _angle(to: _Writer, z: Node) -> Any:
    a, b = to.whole(z)
    return to.call(aten.atan2.default, b, a)


def _exp(to: _Writer, z: Node) -> Pair:
    a, b = to.whole(z)
    return _polar(to, to.call(aten.exp.default, a), b)


def _masked_fill(to: _Writer, z: Node, mask: Node, value: Any) -> Pair:
    values = value.real, value.imag
    return tuple(  # type: ignore[return-value]
        to.call(aten.masked_fill.Scalar, part, mask, each)
        for part, each in zip(to.whole(z), values, strict=True)
    )


def _filled(to: _Writer, *args: Any, **kwargs: Any) -> Pair:
    """Writes a new tensor filled with a number, with a given shape or that of another tensor."""
    assert to.node is not None
    kwargs["dtype"] = _REAL[to.node.meta["val"].dtype]
    like = [to.pair(x)[0] if isinstance(x, Node) else x for x in args]
    real = [x.real if isinstance(x, complex) else x for x in like]
    imaginary = [x.imag if isinstance(x, complex) else x for x in like]
    has_both = any(isinstance(x, complex) and x.imag for x in like)
    made = [to.call(to.node.target, *each, **kwargs) for each in (real, imaginary)[: 1 + has_both]]
    return made[0], made[1] if has_both else None


def _empty(to: _Writer, like: Node, size: Sequence[int], *_: Any, **__: Any) -> Pair:
    """Writes a tensor that is overwritten before it is read."""
    assert to.node is not None
    dtype = _REAL[to.node.meta["val"].dtype]
    return to.call(aten.new_zeros.default, to.pair(like)[0], size, dtype=dtype), None


def _copy(to: _Writer, over: Node, source: Node, non_blocking: bool = False) -> Pair:
    shape = list(over.meta["val"].shape)
    a, b = to.whole(source)
    return to.call(aten.expand.default, a, shape), to.call(aten.expand.default, b, shape)


def _cast(to: _Writer, x: Node, **kwargs: Any) -> Any:
    dtype = kwargs.get("dtype") or x.meta["val"].dtype
    kwargs["dtype"] = _REAL.get(dtype, dtype)
    a, b = (
        to.call(aten._to_copy.default, part, **kwargs) if isinstance(part, Node) else part
        for part in to.pair(x)
    )
    return (a, b) if dtype.is_complex else a


# --- Fourier transforms ---------------------------------------------------------------------------


def _waves(to: _Writer, rows: int, columns: int, period: int, dtype: torch.dtype) -> Pair:
    """Returns the cosines and sines of 2 pi j k / period, [rows, columns]."""
    turns = torch.outer(torch.arange(rows), torch.arange(columns)) % period
    angles = turns.to(torch.float64) * (2 * math.pi / period)
    return to.constant(angles.cos().to(dtype)), to.constant(angles.sin().to(dtype))


def _along(to: _Writer, x: Any, dim: int, matrix: Node) -> Any:
    """Returns the matmul of a dim of x with a matrix."""
    if x is None:
        return None
    shape = list(x.meta["val"].shape)
    order = [d for d in range(len(shape)) if d != dim] + [dim]
    back = [order.index(d) for d in range(len(shape))]
    last = to.call(aten.permute.default, x, order)
    last = to.call(aten.clone.default, last, memory_format=torch.contiguous_format)
    flat = to.call(aten.view.default, last, [math.prod(shape) // shape[dim], shape[dim]])
    found = to.call(aten.mm.default, flat, matrix)
    sizes = [shape[d] for d in order[:-1]] + [matrix.meta["val"].shape[1]]
    return to.call(aten.permute.default, to.call(aten.view.default, found, sizes), back)


def _transform(to: _Writer, pair: Pair, dim: int, columns: int, forward: bool) -> Pair:
    shape, dtype = pair[0].meta["val"].shape, pair[0].meta["val"].dtype
    cos, sin = _waves(to, shape[dim], columns, shape[dim], dtype)
    (a, b), (c, d) = ([_along(to, x, dim, matrix) for matrix in (cos, sin)] for x in pair)
    if forward:
        return to.add(a, d), to.sub(c, b)
    return to.sub(a, d), to.add(c, b)


def _scaled(to: _Writer, pair: Sequence[Any], norm: int, count: int) -> Any:
    if norm == 0:
        return tuple(pair)
    scale = 1.0 / math.sqrt(count) if norm == 1 else 1.0 / count
    return tuple(to.mul(part, scale) for part in pair)


def _sizes(x: Node, dims: Sequence[int]) -> list[int]:
    return [x.meta["val"].shape[dim] for dim in dims]


def _fft(to: _Writer, z: Node, dims: Sequence[int], norm: int, forward: bool) -> Any:
    pair = to.whole(z)
    for dim in dims:
        pair = _transform(to, pair, dim % z.meta["val"].dim(), _sizes(z, [dim])[0], forward)
    return _scaled(to, pair, norm, math.prod(_sizes(z, dims)))


def _fft_of_real(to: _Writer, x: Node, dims: Sequence[int], norm: int, onesided: bool) -> Any:
    rank = x.meta["val"].dim()
    size = _sizes(x, dims)[-1]
    columns = size // 2 + 1 if onesided else size
    pair = _transform(to, (x, None), dims[-1] % rank, columns, True)
    for dim in dims[:-1]:
        pair = _transform(to, pair, dim % rank, _sizes(x, [dim])[0], True)
    return _scaled(to, pair, norm, math.prod(_sizes(x, dims)))


def _fft_to_real(to: _Writer, z: Node, dims: Sequence[int], norm: int, size: int) -> Any:
    pair, rank = to.whole(z), z.meta["val"].dim()
    for dim in dims[:-1]:
        pair = _transform(to, pair, dim % rank, _sizes(z, [dim])[0], False)
    last = dims[-1] % rank
    half = _sizes(z, [last])[0]
    cos, sin = _waves(to, half, size, size, pair[0].meta["val"].dtype)
    # Each frequency also counts for its mirror image, unless it is its own.
    twice = torch.full([half, 1], 2.0, dtype=cos.meta["val"].dtype)
    twice[0] = 1.0
    if size % 2 == 0:
        twice[size // 2] = 1.0
    weights = to.constant(twice)
    real = _along(to, pair[0], last, to.mul(cos, weights))
    found = to.sub(real, _along(to, pair[1], last, to.mul(sin, weights)))
    return _scaled(to, [found], norm, math.prod(_sizes(z, dims[:-1])) * size)[0]


# --- tables ---------------------------------------------------------------------------------------

# Ops that apply to both parts as to the whole.
_OF_BOTH = frozenset(
    {
        "_unsafe_view",
        "alias",
        "cat",
        "clone",
        "constant_pad_nd",
        "detach",
        "diagonal",
        "expand",
        "flip",
        "index",
        "mean",
        "permute",
        "repeat",
        "reshape",
        "resolve_conj",
        "resolve_neg",
        "roll",
        "select",
        "select_backward",
        "select_scatter",
        "slice",
        "slice_backward",
        "slice_scatter",
        "split",
        "squeeze",
        "stack",
        "sum",
        "t",
        "transpose",
        "tril",
        "triu",
        "unbind",
        "unsqueeze",
        "view",
        "where",
    }
)

_RULES: dict[str, Callable[..., Any]] = {
    "view_as_complex": lambda to, x: tuple(to.call(aten.select.int, x, -1, i) for i in (0, 1)),
    "view_as_real": lambda to, z: to.call(aten.stack.default, list(to.whole(z)), -1),
    "complex": lambda to, real, imaginary: (real, imaginary),
    "polar": _polar,
    "mul": _product,
    "mm": lambda to, x, y: _product(to, x, y, aten.mm.default),
    "bmm": lambda to, x, y: _product(to, x, y, aten.bmm.default),
    "add": _sum,
    "sub": lambda to, x, y, alpha=1: _sum(to, x, y, -alpha),
    "div": _quotient,
    "neg": _negative,
    "_conj": _conjugate,
    "_conj_physical": _conjugate,
    "conj_physical": _conjugate,
    "pow": lambda to, z, exponent: _product(to, z, z) if exponent == 2 else to.pair(z),
    "abs": _abs,
    "sgn": _sign,
    "angle": _angle,
    "exp": _exp,
    "masked_fill": _masked_fill,
    "full": _filled,
    "full_like": _filled,
    "new_full": _filled,
    "scalar_tensor": _filled,
    "zeros": _filled,
    "zeros_like": _filled,
    "new_zeros": _filled,
    "ones_like": _filled,
    "new_empty": _empty,
    "new_empty_strided": _empty,
    "copy": _copy,
    "_to_copy": _cast,
    "_fft_c2c": _fft,
    "_fft_r2c": _fft_of_real,
    "_fft_c2r": _fft_to_real,
}
