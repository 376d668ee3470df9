"""Tracing: from a model and an example batch to one functional graph of forward and backward.
Everything runs on fake tensors on the CPU, without weights and at any size. The model's parameters
and buffers, real, fake or on the meta device, are replaced by fake ones meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import traceback
from collections.abc import Collection, Sequence

import torch
import torch.fx.traceback as fx_traceback
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from medley.capture import complex_numbers, row_dims, side_doors
from medley.capture.batch import Batch, Beside
from medley.capture.buffers import Place
from medley.capture.errors import CaptureError, RowsError, quiet, shortened
from medley.capture.gradient_hooks import gradient_hooks
from medley.capture.interception import Interceptor
from medley.capture.modules import ModuleStack, calling_line, is_user_file
from medley.capture.root import Root, fake_state, started

_PRIMES = (10007, 10009, 10037, 10039, 10061, 10067, 10069, 10079, 10091, 10093, 10099, 10103)

_HINTS = {
    "aten.nonzero": "torch.where(mask, x, y) or multiplying by the mask keeps the shape",
    "aten.index": "torch.where(mask, x, y) or multiplying by the mask keeps the shape",
    "aten.masked_select": "torch.where(mask, x, y) or multiplying by the mask keeps the shape",
    "aten._local_scalar_dense": "keep it a tensor: no .item(), float(), int(), bool(), `if` of it",
    "aten.item": "keep it a tensor: no .item(), float(), int(), bool(), `if` of it",
    "aten.is_nonzero": "use torch.where instead of an `if` of a tensor",
    "aten.equal": "use (a == b).all() as a tensor and torch.where",
    "aten.repeat_interleave": "pass output_size=, or repeat by a number",
    "aten._unique2": "count with torch.bincount-like one-hot sums of a fixed number of classes",
    "aten.bincount": "sum a one-hot of a fixed number of classes",
}


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced graph with the meaning of its placeholders. `batch`: names of the batch inputs.
    `complex_ops`: ops with complex tensors that could not be replaced."""

    module: torch.fx.GraphModule
    prime: int
    batch: tuple[str, ...]
    # first name of a parameter or buffer by each of its names (tied weights)
    first_names: dict[str, str]
    trained: frozenset[str]
    complex_ops: list[str]
    metrics: tuple[str, ...] = ()  # names of the outputs after the loss


def choose_primes(
    model: nn.Module, batch: Batch, count: int, among: Sequence[int] = _PRIMES
) -> list[int]:
    """Returns primes that divide no size of the model or the batch, to stand for the batch size."""
    sizes = {size for tensor in batch.tensors for size in tensor.shape}
    for tensor in (*model.parameters(), *model.buffers()):
        sizes.update(tensor.shape)
    found = [p for p in among if all(size == 0 or size % p for size in sizes)]
    if len(found) < count:
        raise CaptureError(
            "the model's sizes are divisible by every prime that could stand for the batch"
        )
    return found[:count]


def trace(
    model: nn.Module,
    batch: Batch,
    prime: int,
    autocast: torch.dtype | None = None,
    assigned: Collection[Place] = (),
    beside: Beside | None = None,
    most_ops: int | None = None,
) -> Traced:
    """Traces forward, loss and backward at a batch of `prime` rows, under autocast to a dtype.
    `assigned`: buffers that forward reassigns, from the rehearsal. `beside`: as in Root.
    `most_ops`: limit for forward, from the rehearsal. Raises CaptureError for code that cannot be
    traced."""
    # Loads TorchDynamo, which takes as long as PyTorch itself. Only capture needs it.
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    modules = ModuleStack(lambda path: fx_traceback.annotate({"module": path}))
    interceptor = Interceptor(
        modules, prime, lambda: fx_traceback.annotate({"source": calling_line()})
    )
    interceptor.most_ops = most_ops
    interceptor.has_pictures = batch.pictures is not None
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    first_names, trained = _names(model)
    hooks = gradient_hooks(model)
    try:
        with (
            contextlib.ExitStack() as stack,
            fake_state(model, mode),
            modules.watch(model),
            fx_traceback.preserve_node_meta(),
            _use_lazy_graph_module(True),  # the Python code of the graph never runs
            quiet(),
            mode,
            started(Root(model, batch, interceptor, hooks, autocast, beside)) as root,
        ):
            root.assigned.update(assigned)
            rng = torch.empty(2, dtype=torch.int64)
            joint = aot_export_joint_with_descriptors(
                stack, root, (rng, *batch.empty(prime)), decompositions={}
            )
    except CaptureError as error:
        shown = re.sub(rf"(?<=[\[ ]){prime}(?=[,\]])", "b", str(error))  # in shapes
        raise type(error)(_placed(shown, error, modules)) from None
    except Exception as error:
        raise _explained(error, modules, batch, model) from None
    complex_ops = complex_numbers.lower(joint.graph_module)
    _take_one_row_from_one(joint.graph_module.graph)
    _leave_out_running_statistics(joint.graph_module.graph)
    return Traced(
        joint.graph_module, prime, batch.names, first_names, trained, complex_ops, root.metrics
    )


def _take_one_row_from_one(graph: torch.fx.Graph) -> None:
    """Replaces x.expand(rows, ...)[:1], which looks like a cross-sample dependence, by the one row
    of x."""
    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.slice.Tensor):
        wide = node.args[0]
        if node.args[1:] != (0, 0, 1) or wide.target is not aten.expand.default:
            continue
        one = wide.args[0]
        if one.meta["val"].shape == node.meta["val"].shape:
            node.replace_all_uses_with(one)
            graph.erase_node(node)
            if not wide.users:
                graph.erase_node(wide)


def _leave_out_running_statistics(graph: torch.fx.Graph) -> None:
    """Removes the running statistics from the backward ops of training batch norms, which read only
    those of the batch. PyTorch passes the last values of the step, from another call of the norm.
    """
    for node in graph.find_nodes(
        op="call_function", target=torch.ops.aten.native_batch_norm_backward.default
    ):
        if node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def _names(model: nn.Module) -> tuple[dict[str, str], frozenset[str]]:
    """Returns the first name of every parameter and buffer, and the first names of the trained
    ones."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    trained: set[str] = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
        if parameter.requires_grad:
            trained.add(names[name])
    for name, buffer in model.named_buffers(remove_duplicate=False):
        names[name] = first.setdefault(id(buffer), name)
    return names, frozenset(trained)


# --- errors ---------------------------------------------------------------------------------------


def source_of(error: BaseException) -> str:
    """Returns "file.py:12", the innermost line of the model in a traceback, or ""."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _placed(message: str, error: BaseException, modules: ModuleStack) -> str:
    where = [f"module {modules.failed!r}"] if modules.failed else []
    source = source_of(error)
    if source:
        where.append(source)
    return f"{', '.join(where)}: {message}" if where else message


def _explained(
    error: Exception, modules: ModuleStack, batch: Batch, model: nn.Module
) -> CaptureError:
    function = getattr(error, "func", None)
    if type(error).__name__ in (
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "UnsupportedOperatorException",
        "GuardOnDataDependentSymNode",
    ):
        name = str(function)
        hint = next(
            (hint for op, hint in _HINTS.items() if name == op or name.startswith(op + ".")),
            "make the shapes depend on the sizes of the batch only",
        )
        return CaptureError(
            _placed(
                f"{name}: a shape or a number depends on the values in the batch: {hint}",
                error,
                modules,
            )
        )
    if sentence := side_doors.explained(error):
        return CaptureError(_placed(sentence, error, modules))
    what = f"{type(error).__name__}: {shortened(str(error))} ({_size_hint(batch, model)})"
    return RowsError(_placed(f"the model fails at a batch of other rows: {what}", error, modules))


def _size_hint(batch: Batch, model: nn.Module) -> str:
    if hint := row_dims.hint(batch):
        return hint
    for name, buffer in model.named_buffers():
        if batch.rows > 1 and batch.rows in buffer.shape:
            return (
                f"its buffer {name!r} is {list(buffer.shape)}, and the example batch has "
                f"{batch.rows} rows: a buffer cannot hold something for each row"
            )
    return "where the model needs the batch size, it should read x.shape[0]"
