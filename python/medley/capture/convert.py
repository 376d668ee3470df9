"""Conversion of a traced graph to the text form of Medley's graph (medley/graph/text.h)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch._functorch._aot_autograd import descriptors as desc
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from medley import _core, whole_tensors
from medley.capture.errors import CaptureError
from medley.capture.side_doors import KEPT
from medley.capture.trace import Traced

DTYPES = {dtype: name for name, dtype in whole_tensors.DTYPES.items()}

# Arguments for the storage of a tensor, which the executor chooses.
_PLACEMENT = ("layout", "device", "pin_memory", "memory_format", "generator", "non_blocking")
_RESHAPES = ("view", "_unsafe_view", "reshape", "expand")
_DROPPED = ("aten._assert_async", "aten._assert_scalar", "aten._assert_tensor_metadata")
_SEEDED = torch.Tag.nondeterministic_seeded
_STORED = (  # the runtime passes contiguous matrices
    torch.ops.aten._linalg_det.default,
    torch.ops.aten._linalg_slogdet.default,
    torch.ops.aten._linalg_solve_ex.default,
)
# Ops that raise an error for a singular matrix. The result then has infinities, as in other cases.
_CHECKS = (torch.ops.aten._linalg_check_errors.default,)


@dataclasses.dataclass(frozen=True)
class Converted:
    """The text, and the values of its inputs `buffer "constant:<n>"`."""

    text: str
    constants: dict[str, Tensor]
    num_ops: int


def convert(traced: Traced, name: str) -> Converted:
    """Returns the text of a traced graph. Raises CaptureError if the batch size is a constant in
    it."""
    return _Writer(traced, name).write()


def convert_function(
    module: torch.fx.GraphModule,
    prime: int,
    inputs: Sequence[tuple[str, str]],
    outputs: Sequence[tuple[str, str]],
) -> str:
    """Returns the text of a traced function. `inputs` and `outputs` are kinds and names."""
    traced = Traced(module, prime, (), {}, frozenset(), [])
    return _Writer(traced, "function").write_function(inputs, outputs)


class _Writer:
    def __init__(self, traced: Traced, name: str) -> None:
        self._traced = traced
        self._prime = traced.prime
        self._lines: list[str] = ["medley-graph 1", f"graph {_core.quote(name)}", "symbols b"]
        self._ids: dict[Node, str | list[str]] = {}
        self._next = 0
        self._constants: dict[str, Tensor] = {}
        self._first: dict[Node, Node] = {}
        self._num_ops = 0
        self._phases: dict[Node, str] = {}
        self._modules: dict[Node, str] = {}
        self._changed: set[str] = set()  # parameters and buffers that forward changes

    def write(self) -> Converted:
        graph = self._traced.module.graph
        nodes = list(graph.nodes)
        self._inherit(nodes)
        tangents: list[Node] = []
        self._changed = {
            self._state_name(each.mutated_input.target)
            for each in nodes[-1].meta["desc"]
            if isinstance(each, desc.InputMutationAOTOutput)
            and isinstance(each.mutated_input, (desc.ParamAOTInput, desc.BufferAOTInput))
        }
        self._inputs([n for n in nodes if n.op == "placeholder"], tangents)
        lifted = [n for n in nodes if n.op == "get_attr"]
        made = self._constant_inputs(lifted)
        calls = [n for n in nodes if n.op == "call_function" and not self._is_getitem(n)]
        calls = [n for n in calls if not (str(n.target).startswith(_DROPPED) or _is_check(n))]
        for node, text in made:
            self._emit(node, text, self._constant(node), "forward", "", "")
        for node in lifted:
            self._ids.setdefault(node, self._ids[self._first[node]])
        for node in calls:
            if self._phases[node] == "forward":
                self._op(node)
        scaled = any(
            getattr(each.meta.get("val"), "dtype", None) == torch.bfloat16 for each in calls
        )
        for node in tangents:
            self._tangent(node, scaled)
        for node in calls:
            if self._phases[node] == "backward":
                self._op(node)
        self._outputs(next(n for n in nodes if n.op == "output"))
        return Converted("\n".join(self._lines) + "\n", self._constants, self._num_ops)

    def _tangent(self, node: Node, scaled: bool) -> None:
        """Writes the gradient of an output: 1 for the loss, 0 for new values of buffers."""
        value = node.meta["val"]
        what = node.meta["desc"].output
        is_loss = isinstance(what, desc.PlainAOTOutput)
        sizes = _list([self._size(int(size)) for size in value.shape], "sizes")
        number = "1.0" if is_loss else "0.0"
        text = f"aten.full.default({sizes}, {number}, {DTYPES[value.dtype]}, none, none, none)"
        self._emit(node, text, value, "backward", "", "")
        if is_loss and scaled:
            whole = f"medley.loss_scale.default({self._ids[node]})"
            self._emit(node, whole, value, "backward", "", "")

    def write_function(
        self, inputs: Sequence[tuple[str, str]], outputs: Sequence[tuple[str, str]]
    ) -> str:
        nodes = list(self._traced.module.graph.nodes)
        given = [node for node in nodes if node.op == "placeholder"]
        for node, (kind, name) in zip(given, inputs, strict=True):
            self._input(node, kind, name)
        for node in nodes:
            if node.op == "get_attr":
                text = self._constant_text(node)
                if text is None:
                    raise CaptureError(f"{node.target}: a tensor made outside of the function")
                self._emit(node, text, self._constant(node), "update", "", "")
            if node.op == "call_function" and not self._is_getitem(node):
                self._phases[node], self._modules[node] = "update", ""
                self._op(node)
        values = next(node for node in nodes if node.op == "output").args[0]
        assert isinstance(values, (tuple, list))
        for value, (kind, name) in zip(values, outputs, strict=True):
            assert isinstance(value, Node)
            self._lines.append(f"output {kind} {_core.quote(name)} {self._id(value)}")
        return "\n".join(self._lines) + "\n"

    # --- inputs and outputs ---

    def _inputs(self, nodes: Sequence[Node], tangents: list[Node]) -> None:
        by_name: dict[str, Node] = {}
        for node in nodes:
            what = node.meta["desc"]
            if isinstance(what, desc.TangentAOTInput):
                tangents.append(node)
            elif isinstance(what, (desc.ParamAOTInput, desc.BufferAOTInput)):
                name = self._state_name(what.target)
                if name in by_name:  # tied parameters
                    self._ids[node] = self._ids[by_name[name]]
                    continue
                # A frozen weight may be read only by a second name.
                kind = self._kind(what)
                if kind == "buffer" or name in self._traced.trained or node.users:
                    by_name[name] = node
                    self._input(node, kind, name)
            elif isinstance(what, desc.PlainAOTInput):
                if what.idx > 0:
                    self._input(node, "batch", self._traced.batch[what.idx - 1])
                elif node.users:
                    self._input(node, "scalar", "rng")
            elif isinstance(what, (desc.ForwardTokenAOTInput, desc.BackwardTokenAOTInput)):
                continue  # orders effects; the remaining ops have none
            else:
                raise CaptureError(f"an input of a kind that is not supported: {what.expr()}")

    def _kind(self, what: desc.ParamAOTInput | desc.BufferAOTInput) -> str:
        """Returns the kind of an input. A frozen weight that forward changes is a buffer."""
        is_changed = self._state_name(what.target) in self._changed
        return "buffer" if is_changed or isinstance(what, desc.BufferAOTInput) else "parameter"

    def _state_name(self, target: str) -> str:
        name = target.removeprefix("model.")
        return self._traced.first_names.get(name, name)

    def _input(self, node: Node, kind: str, name: str, like: Tensor | None = None) -> None:
        value = self._new_value()
        self._ids[node] = value
        type_ = self._type(node.meta["val"] if like is None else like, node)
        self._lines.append(f"{value} = {kind} {_core.quote(name)} : {type_}")

    def _outputs(self, node: Node) -> None:
        values = node.args[0]
        assert isinstance(values, (tuple, list))
        gradients: dict[str, list[Node]] = {}
        buffers: list[tuple[str, Node]] = []
        results: list[Node] = []  # the loss, then metrics
        for value, what in zip(values, node.meta["desc"], strict=True):
            if not isinstance(value, Node):
                continue
            if isinstance(what, desc.GradAOTOutput):
                if isinstance(what.grad_of, desc.ParamAOTInput):
                    gradients.setdefault(self._state_name(what.grad_of.target), []).append(value)
            elif isinstance(what, desc.InputMutationAOTOutput):
                source = what.mutated_input
                if not isinstance(source, (desc.ParamAOTInput, desc.BufferAOTInput)):
                    continue  # a tensor of the batch, which no step reads again
                name = self._state_name(source.target)
                if name in self._traced.trained:
                    at = f"{line}: " if (line := _source(value)) else ""
                    raise CaptureError(
                        f"{at}the model changes its parameter {name!r} in place: {KEPT}"
                    )
                buffers.append((name, value))
            elif isinstance(what, desc.PlainAOTOutput):
                results.append(value)
        if not results or not gradients:
            raise CaptureError("the model returned no loss that depends on its parameters")
        sums = {name: self._sum(name, found) for name, found in gradients.items()}
        self._lines.append(f"output loss {self._id(results[0])}")
        metrics = list(zip(self._traced.metrics, results[1:], strict=True))
        for name, each in metrics:
            if (shape := self._type(each.meta["val"], each)).count("b") > 1 + shape.startswith("b"):
                raise CaptureError(
                    f"output {name!r} is {shape}: a step returns tensors with the rows of the "
                    "batch in one dim"
                )
        self._lines += [f"output metric {_core.quote(n)} {self._id(each)}" for n, each in metrics]
        self._lines += [f"output gradient {_core.quote(n)} {value}" for n, value in sums.items()]
        self._lines += [f"output buffer {_core.quote(n)} {self._id(value)}" for n, value in buffers]

    def _sum(self, name: str, nodes: list[Node]) -> str:
        """Returns the sum of the gradients of a tied parameter."""
        total = self._id(nodes[0])
        for node in nodes[1:]:
            text = f"aten.add.Tensor({total}, {self._id(node)}, 1)"
            module = name.rpartition(".")[0]
            total = self._emit(None, text, node.meta["val"], "backward", module, "")[0]
        return total

    # --- constants ---

    def _constant(self, node: Node) -> Tensor:
        value: Any = self._traced.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, Tensor):
            raise CaptureError(f"{node.target}: a constant that is no tensor")
        if any(size and size % self._prime == 0 for size in value.shape):
            raise CaptureError(
                f"{node.target}: a constant of shape {list(value.shape)} made outside of the model "
                "for one batch size: make it a batch input or compute it from x.shape[0]"
            )
        return value

    def _constant_text(self, node: Node) -> str | None:
        """Returns the op that makes a constant, if the constant is uniform or a range."""
        value = self._constant(node)
        if isinstance(value, FakeTensor):
            return None
        dtype, flat = DTYPES[value.dtype], value.detach().reshape(-1)
        if flat.numel() and bool((flat == flat[0]).all()):
            number = _number(flat[0].item(), value.dtype)
            shape = _list([str(size) for size in value.shape], "sizes")
            return f"aten.full.default({shape}, {number}, {dtype}, none, none, none)"
        if value.dim() == 1 and value.dtype == torch.int64:
            step = int(flat[1] - flat[0])
            start, end = int(flat[0]), int(flat[0]) + step * flat.numel()
            if bool((flat == torch.arange(start, end, step)).all()) if step else False:
                return f"aten.arange.start_step({start}, {end}, {step}, {dtype}, none, none, none)"
        return None

    def _constant_inputs(self, lifted: Sequence[Node]) -> list[tuple[Node, str]]:
        """Writes an input for each constant that no op makes, and equal ones once. Returns the ops
        that make the others."""
        made: list[tuple[Node, str]] = []
        for node in lifted:
            value = self._constant(node)
            same = (n for n in self._first.values() if _equal(self._constant(n), value))
            self._first[node] = next(same, node)
            if self._first[node] is not node:
                continue
            text = self._constant_text(node)
            if text is not None:
                made.append((node, text))
                continue
            name = f"constant:{len(self._constants)}"
            self._constants[name] = value.detach()
            self._input(node, "buffer", name, value)
        return made

    # --- ops ---

    def _op(self, node: Node) -> None:
        target = node.target
        if target is torch.ops.higher_order.with_effects:
            raise self._error(node, f"{node.args[1]} has effects besides its results")
        if not isinstance(target, torch._ops.OpOverload):
            raise CaptureError(f"{target}: an operation that is no PyTorch operator")
        if _SEEDED in target.tags and not str(target).startswith("aten._scaled_dot"):
            raise self._error(
                node,
                "its random numbers depend on how the work is split: make them of torch.rand or "
                "torch.randn, or draw them outside and pass them in the batch",
            )
        if target in _STORED and not _is_contiguous(node.args[0]):
            raise self._error(
                node,
                "what it keeps for backward depends on how the matrix is stored: call "
                ".contiguous() on it before, for example after a transpose",
            )
        place = (self._phases[node], self._modules[node], _source(node))
        if target is torch.ops.aten.fill.Tensor:
            self._fill(node, place)
            return
        arguments = ", ".join(self._arguments(node, target))
        self._emit(node, f"{target}({arguments})", _true_types(node), *place)

    def _fill(self, node: Node, place: tuple[str, str, str]) -> None:
        """Writes fill(x, value) as the expanded value, because x gives only a shape."""
        value, type_ = node.args[1], node.meta["val"]
        assert isinstance(value, Node)
        one, text = value.meta["val"], self._id(value)
        if one.dtype != type_.dtype:
            cast = (
                f"aten._to_copy.default({text}, {self._dtype(type_.dtype, node)}, none, none, none,"
            )
            text = self._emit(None, f"{cast} false, none)", one.to(type_.dtype), *place)[0]
        shape = _list([self._size(int(size)) for size in type_.shape], "sizes")
        self._emit(node, f"aten.expand.default({text}, {shape}, false)", type_, *place)

    def _emit(
        self, node: Node | None, text: str, value: Any, phase: str, module: str, source: str
    ) -> list[str]:
        results = list(value) if isinstance(value, (tuple, list)) else [value]
        names = [self._new_value() if isinstance(r, Tensor) else "_" for r in results]
        types = ", ".join(self._type(r, node) for r in results)
        left = f"{', '.join(names)} = " if names else ""
        where = f" at {_core.quote(source)}" if source else ""
        self._lines.append(f"{left}{text} : {types} @{phase} {_core.quote(module)}{where}")
        self._num_ops += 1
        if node is not None:
            self._ids[node] = names if isinstance(value, (tuple, list)) else names[0]
        return names

    def _arguments(self, node: Node, target: torch._ops.OpOverload) -> list[str]:
        texts = []
        for position, argument in enumerate(target._schema.arguments):
            if argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            elif position < len(node.args) and not argument.kwarg_only:
                value = node.args[position]
            else:
                value = argument.default_value
            kind = str(argument.real_type)
            if argument.name in _PLACEMENT:
                texts.append("false" if argument.name == "non_blocking" else "none")
                continue
            if argument.name == "dtype" and value is None and not node.all_input_nodes:
                # explicit dtype: factories must not use the process default
                value = node.meta["val"].dtype
            if argument.name == "size" and target._opname in _RESHAPES:
                value = list(node.meta["val"].shape)
            if argument.name == "site":  # site of random values; no size
                texts.append(str(value))
                continue
            is_range = target._opname == "arange" and argument.name in ("start", "end")
            texts.append(self._argument(node, value, kind, is_range))
        return texts

    def _argument(self, node: Node, value: Any, kind: str, is_size: bool) -> str:
        kind = _inside("Optional", kind)
        if value is None:
            return "none"
        if isinstance(value, Node):
            return self._id(value)
        if isinstance(value, torch.dtype):
            return self._dtype(value, node)
        if isinstance(value, str):
            return _core.quote(value)
        if kind.startswith("List["):
            inner = _inside("List", kind)
            items = value if isinstance(value, (list, tuple)) else [value]
            texts = [self._argument(node, item, inner, is_size) for item in items]
            return _list(texts, _EMPTY.get(_inside("Optional", inner), "values"))
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int) and kind != "float":
            if kind == "int" or is_size:
                return self._size(value)
            self._check_literal(node, float(value))
            return str(value)
        if isinstance(value, (int, float)):
            self._check_literal(node, float(value))
            return _float(float(value))
        raise self._error(
            node, f"an argument of a type that is not supported: {type(value).__name__}"
        )

    def _check_literal(self, node: Node, value: float) -> None:
        if holds_batch(value, self._prime):
            raise self._error(
                node,
                f"the number {value!r} holds the size of the batch ({self._prime} while "
                "capturing): use mean() or a loss with reduction='mean', or divide by a tensor "
                "that counts the rows, such as torch.ones_like(x).sum()",
            )

    # --- types and sizes ---

    def _size(self, value: int) -> str:
        symbols = 0
        while value and value % self._prime == 0:
            value //= self._prime
            symbols += 1
        if not symbols:
            return str(value)
        return "*".join(["b"] * symbols + ([str(value)] if value != 1 else []))

    def _type(self, value: Any, node: Node | None) -> str:
        if not isinstance(value, Tensor):
            if value is None:
                return "none"
            raise self._error(node, f"a result that is no tensor: {type(value).__name__}")
        if value.layout is not torch.strided:
            raise self._error(node, "sparse tensors are not supported: use dense ones")
        sizes = ", ".join(self._size(int(size)) for size in value.shape)
        return f"{self._dtype(value.dtype, node)}[{sizes}]"

    def _dtype(self, dtype: torch.dtype, node: Node | None) -> str:
        if dtype.is_complex:
            raise self._error(
                node,
                f"complex numbers ({dtype}) are not supported in "
                f"{', '.join(self._traced.complex_ops)}: keep real and imaginary parts as two real "
                "tensors, (a + bi)(c + di) = (ac - bd) + (ad + bc)i; an FFT is a product with the "
                "matrices of cosines and sines",
            )
        if dtype not in DTYPES:
            raise self._error(node, f"tensors of type {dtype} are not supported")
        return DTYPES[dtype]

    def _new_value(self) -> str:
        self._next += 1
        return f"%{self._next - 1}"

    def _is_getitem(self, node: Node) -> bool:
        return getattr(node.target, "__name__", "") == "getitem"

    def _id(self, node: Node) -> str:
        if self._is_getitem(node):
            source, position = node.args
            assert isinstance(source, Node) and isinstance(position, int)
            return self._ids[source][position]
        found = self._ids[node]
        assert isinstance(found, str), f"{node} has several results"
        return found

    # --- phases and modules ---

    def _inherit(self, nodes: Sequence[Node]) -> None:
        """Finds the phase and module of every node. A node without them takes those of its
        producers, or of its consumers, as in gradient accumulation."""
        for node in nodes:
            tag = str(node.meta.get("partitioner_tag", ""))
            if "backward" in tag:
                self._phases[node] = "backward"
            elif "forward" in tag:
                self._phases[node] = "forward"
            else:
                backward = any(self._phases.get(p) == "backward" for p in node.all_input_nodes)
                self._phases[node] = "backward" if backward else "forward"
            module = (node.meta.get("custom") or {}).get("module")
            if module is None and node.op == "call_function":
                known = [self._modules[p] for p in node.all_input_nodes if p in self._modules]
                module = known[-1] if known else None
            if module is not None:
                self._modules[node] = module
        for node in reversed(nodes):
            if node not in self._modules:
                known = [self._modules[u] for u in node.users if u in self._modules]
                self._modules[node] = known[0] if known else ""

    def _error(self, node: Node | None, message: str) -> CaptureError:
        if node is None:
            return CaptureError(message)
        module = self._modules.get(node, "")
        source = _source(node)
        where = f"{node.target}, module {module!r}" + (f", {source}" if source else "")
        return CaptureError(f"{where}: {message}")


_EMPTY = {
    "int": "sizes",
    "float": "floats",
    "bool": "bools",
    "Tensor": "values",
    "number": "floats",
}


def _inside(kind: str, type_: str) -> str:
    """Returns "int" for "Optional[int]", and other types unchanged."""
    return type_[len(kind) + 1 : -1] if type_.startswith(f"{kind}[") else type_


def holds_batch(value: float, prime: int) -> bool:
    """Returns whether a literal is likely a multiple of the batch size, or a ratio over one."""
    if value == 0 or not math.isfinite(value):
        return False
    if value == int(value) if abs(value) < 2.0**62 else False:
        return int(value) % prime == 0
    ratio = Fraction(value).limit_denominator(10**7)
    close = ratio != 0 and abs(float(ratio) / value - 1.0) < 4e-16
    inverse = Fraction(1.0 / value).limit_denominator(100) if abs(value) > 1e-300 else Fraction(0)
    if inverse != 0 and abs(float(inverse) * value - 1.0) < 4e-16:
        return inverse.numerator % prime == 0
    return close and ratio.denominator % prime == 0


def _is_contiguous(operand: Any) -> bool:
    return isinstance(operand, Node) and bool(operand.meta["val"].is_contiguous())


def _is_check(node: Node) -> bool:
    return node.target is torch.ops.higher_order.with_effects and node.args[1] in _CHECKS


def _source(node: Node) -> str:
    """Returns "file.py:12", the innermost line of the model that made the node, or ""."""
    return str((node.meta.get("custom") or {}).get("source", ""))


def _true_types(node: Node) -> Any:
    """Returns the results of a node with the types of its real kernel. The fake kernel of batch
    norm gives the saved statistics the type of x, the real one that of the running statistics."""
    value = node.meta["val"]
    if node.target is not torch.ops.aten._native_batch_norm_legit_functional.default:
        return value
    running = node.args[3]
    assert isinstance(running, Node)
    dtype = running.meta["val"].dtype
    y, mean, rstd, *rest = value
    return [y, mean.to(dtype), rstd.to(dtype), *rest]


def _equal(a: Tensor, b: Tensor) -> bool:
    if a is b:
        return True
    if isinstance(a, FakeTensor) or isinstance(b, FakeTensor):
        return False
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def _list(texts: Sequence[str], empty: str) -> str:
    return f"[{', '.join(texts)}]" if texts else f"{empty}[]"


def _float(value: float) -> str:
    text = repr(value)
    return text if any(c in text for c in ".en") else text + ".0"


def _number(value: Any, dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "true" if value else "false"
    return _float(value) if dtype.is_floating_point else str(value)
