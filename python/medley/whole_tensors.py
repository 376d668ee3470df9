"""The tensors of a run as the model has them: whole, by name. Knows no plans and no steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from medley import _core
from medley.run import exchange
from medley.run.job import Job
from medley.shapes import sizes_of

CONSTANT = "constant:"  # prefix of tensors outside all modules
CARRIED = "carried:"  # prefix of inputs of the batch that an output replaces in the next step
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
Types = Mapping[tuple[str, str], tuple[torch.dtype, str]]  # dtype and shape by kind and name
Together = Callable[[str], contextlib.AbstractContextManager[None]]  # context of a collective call


def types_of(graph: _core.Graph) -> dict[tuple[str, str], tuple[torch.dtype, str]]:
    """Returns dtype and shape of all inputs of a graph by kind and name."""
    return {(kind, name): (DTYPES[dtype], shape) for kind, name, dtype, shape in graph.inputs}


def read_kind(
    run: Any,
    job: Job | None,
    types: Types,
    kind: str,
    among: Collection[str] | None,
    together: Together,
) -> dict[str, Tensor]:
    """Returns copies of all tensors of a kind, or of those in `among`, in the order of the model.
    Stages have another order."""
    names = [name for each, name in run.values if each == kind]
    names = [name for name in names if among is None or name in among]
    order = {each: place for place, each in enumerate(types)}
    names.sort(key=lambda name: order[_input_of(kind, name)])
    whole = job is None or all(
        not run.is_cut(kind, name) and len(run.holders(kind, name)) == job.size for name in names
    )
    with contextlib.nullcontext() if whole else together(f"{kind}s()"):
        return {name: read_one(run, job, types, kind, name) for name in names}


def read_one(run: Any, job: Job | None, types: Types, kind: str, name: str) -> Tensor:
    """Returns a copy of a tensor. All processes call it for the same tensors in the same order."""
    cut = run.is_cut(kind, name)
    holders = run.holders(kind, name)
    if job is None:
        shards = [run.shard(kind, name, i) for i in (holders if cut else holders[:1])]
    elif cut or len(holders) < job.size:
        own = run.shard(kind, name, 0)
        dtype = dtype_of(types, kind, name)
        shards = [
            exchange.tensor_from(
                rank,
                own if rank == job.rank else None,
                run.shard_shape(kind, name, rank),
                dtype,
            )
            for rank in (holders if cut else holders[:1])
        ]
    else:
        shards = [run.shard(kind, name, 0)]
    if any(shard is None for shard in shards):
        raise ValueError(f"{kind} {name!r}: there is none before the first step")
    whole: Tensor = run.assemble(kind, name, [shard.cpu() for shard in shards])
    return whole.clone()


def dtype_of(types: Types, kind: str, name: str) -> torch.dtype:
    """Returns the dtype of a value; for the state "average:<parameter>" that of the optimizer."""
    dtype = types[_input_of(kind, name)][0]
    return torch.promote_types(dtype, torch.float32) if kind == "state" else dtype


def _input_of(kind: str, name: str) -> tuple[str, str]:
    """Returns the input of the graph to which a value belongs."""
    return (kind, name) if kind == "buffer" else ("parameter", name.rpartition(":")[2])


def start(
    run: Any,
    job: Job | None,
    types: Types,
    constants: Mapping[str, Tensor],
    read: Callable[[], Mapping[str, Tensor]],
) -> None:
    """Gives the devices the initial values that `read` returns in the first process."""
    values: dict[tuple[str, str], Tensor] = {}
    # A stage lacks buffers that none of its ops reads.
    kept = set(run.values) & set(types)

    def first() -> bytes:
        tensors = {**constants, **read()}
        for kind, name in types:
            if (kind, name) in kept:
                values[kind, name] = _checked(types, kind, name, tensors.get(name))
        return b""

    with exchange.reordered(None):  # first process of the job, independent of the plan
        first() if job is None else exchange.from_first(first, "reads the initial values")
        run.clear_state()
        for (kind, name), (dtype, shape) in types.items():
            if (kind, name) in kept:
                value = values.get((kind, name))
                if job is not None:
                    value = exchange.tensor_from(0, value, sizes_of(shape), dtype)
                assert value is not None
                run.load(kind, name, value.detach().cpu())


def _checked(types: Types, kind: str, name: str, value: Tensor | None) -> Tensor:
    """Returns an initial value. Raises ValueError if its type differs from the graph's."""
    if value is None and name.startswith(CONSTANT):
        raise ValueError(
            f"{kind} {name!r}: a tensor that the model uses and that is neither parameter nor "
            "buffer has no values in a graph read from a file: capture the model in the script "
            "(medley.capture), or make the tensor a buffer (register_buffer)"
        )
    if value is None:
        raise ValueError(f"{kind} {name!r}: the model has none, the graph expects one")
    if value.is_meta or isinstance(value, FakeTensor):
        raise ValueError(
            f"{kind} {name!r}: found a tensor without values (on the meta device), "
            "expected a model with initial values"
        )
    dtype, shape = types[kind, name]
    if value.dtype != dtype or list(value.shape) != sizes_of(shape):
        raise ValueError(
            f"{kind} {name!r}: found {value.dtype} of shape {list(value.shape)}, the graph "
            f"expects {dtype} of shape {shape}"
        )
    return value


def persistent(tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors of the model's state dict. Those outside the graph have the model's
    values."""
    states = model.state_dict()
    result = {name: value for name, value in tensors.items() if name in states}
    known = {value.data_ptr() for name, value in states.items() if name in result}
    for name, value in states.items():
        if name not in result and value.data_ptr() not in known and not value.is_meta:
            result[name] = value.detach().cpu().clone()
    return result
