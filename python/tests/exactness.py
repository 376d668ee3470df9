"""Any legal plan trains like one device: the comparison shared by the exactness tests. The
reference is plain eager PyTorch with AdamW. Only dropout is replaced by ours in both, because its
random values must not depend on the plan."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import medley
from medley import _core, _testing, custom_ops
from medley.capture import substitute
from medley.cluster import parse_cluster

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: COUNT, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 50 us}
"""
# A tensor whose true gradient is zero has a gradient of rounding errors. Adam divides it by its
# epsilon: up to lr * 1e-16 / 1e-8 per step. A key bias shifts all scores of a query equally, which
# softmax ignores. Batch norm removes the bias of the convolution before it, and in ResNet that of
# the stem's norm too, if max pooling leaves a channel above zero everywhere. Only these tensors get
# an absolute floor.
ZERO_GRADIENT = {
    "bert": "layers.*.attention.k.bias",
    "hf-bert": "*.attention.self.key.bias",
    "hf-vit": "*.attention.k_proj.bias",
    "vgg-bn": "features.[0-9].bias",
    "resnet": "stem.1.bias",
}
ZERO_GRADIENT_FLOOR = 1e-9
FLOOR = 1e-14
ROWS = 6  # in the batches of most tests, which thus share captures
_graphs: dict[tuple[Callable[..., Any], int], medley.Graph] = {}


class Promote(TorchFunctionMode):
    """Makes islands of float32 inside a float64 model float64: their rounding is not the plan's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replaces the dtype wherever a function is given it."""
        swap = {torch.float32: torch.float64}
        args = [swap.get(x, x) if isinstance(x, torch.dtype) else x for x in args]
        kwargs = {
            k: swap.get(x, x) if isinstance(x, torch.dtype) else x
            for k, x in (kwargs or {}).items()
        }
        if func is Tensor.float:
            func = Tensor.double
        return func(*args, **kwargs)


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """Everything in float64, new tensors included."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Promote():
            yield
    finally:
        torch.set_default_dtype(before)


@dataclasses.dataclass
class Curve:
    """The results of training: losses by step, gradients of the last step, parameters after it."""

    losses: list[float]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def to_double(batch: Any) -> Any:
    """Returns the batch with its floating tensors in float64."""
    if isinstance(batch, Tensor):
        return batch.double() if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        return {name: to_double(value) for name, value in batch.items()}
    return type(batch)(to_double(value) for value in batch)


def captured(
    make: Callable[..., tuple[nn.Module, Any]], rows: int
) -> tuple[nn.Module, Any, medley.Graph]:
    """Returns a model in float64, its batch and its graph. Called in double_precision(). A process
    captures each only once. test_capture.py tests that the batch size has no effect."""
    model, batch = make(batch=rows)
    model, batch = model.double(), to_double(batch)
    if (make, rows) not in _graphs:
        _graphs[make, rows] = medley.capture(model, batch, check=False)
    return model, batch, _graphs[make, rows]


def loss_of(output: Any) -> Tensor:
    """Returns the loss in the output of a model."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple):
        return output[0] / output[1]
    loss: Tensor = output["loss"] if isinstance(output, Mapping) else output.loss
    return loss


def call(model: nn.Module, batch: Any) -> Any:
    """Calls a model as the trainer's capture does."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch) if isinstance(batch, Tensor) else model(*batch)


def train_eager(
    model: nn.Module,
    batch: Any,
    steps: int,
    lr: float,
    clip: float = 0.0,
    optimizer_of: Callable[[nn.Module], Any] | None = None,
) -> Curve:
    """Trains a copy of the model with plain PyTorch, by default with AdamW."""
    model = copy.deepcopy(model)
    if optimizer_of is None:
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    else:
        optimizer = optimizer_of(model)
    curve = Curve([], {}, {})
    for step in range(steps):
        custom_ops.set_rng(0, step)
        optimizer.zero_grad()
        with substitute(model):
            loss = loss_of(call(model, batch))
            loss.backward()  # type: ignore[no-untyped-call]
        curve.losses.append(loss.item())
        curve.gradients = {
            name: parameter.grad.clone()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    curve.parameters = {
        name: parameter.detach().clone() for name, parameter in model.named_parameters()
    }
    return curve


def train_plan(
    model: nn.Module,
    graph: Any,
    plan: str,
    batch: Any,
    steps: int,
    lr: float,
    clip: float = 0.0,
    optimizer: Any = None,
) -> Curve:
    """Trains on all devices of a plan as threads of this process."""
    trainer = medley.Trainer(
        model,
        graph,
        medley.Plan(plan),
        optimizer=optimizer or medley.AdamW(lr=lr, weight_decay=0.01, max_norm=clip or None),
        local=True,
        cluster=cluster(max([3, *map(int, re.findall(r'"a/(\d+)/0"', plan))]) + 1),
    )
    losses = []
    for step in range(steps):
        losses.append(trainer.step(batch).loss)
        odd = trainer.engine.run.disagreements()
        assert not odd, f"after step {step} devices have different bits of {odd}"
    return Curve(losses, trainer.gradients(), trainer.parameters())


def cluster(count: int = 4) -> Any:
    """Returns a cluster of `count` equal devices. The plans are unequal by themselves."""
    return parse_cluster(CLUSTER.replace("COUNT", str(count)))


def compare(
    got: Curve, want: Curve, relative: float = 1e-10, model: str = "", ordered: bool = True
) -> float:
    """Asserts that losses, gradients, parameters agree, relative to a tensor's largest element.
    Returns the largest difference by this measure, of those that are not below the floor.
    `ordered`: their names also have the same order."""
    worst = 0.0
    for step, (a, b) in enumerate(zip(got.losses, want.losses, strict=True)):
        worst = max(worst, abs(a - b) / max(1.0, abs(b)))
        assert abs(a - b) <= relative * max(1.0, abs(b)), f"loss of step {step}: {a} vs {b}"
    for what in ("gradients", "parameters"):
        found, expected = getattr(got, what), getattr(want, what)
        assert found.keys() == expected.keys(), what
        assert not ordered or list(found) == list(expected), what
        for name, tensor in expected.items():
            if tensor.numel() == 0:
                continue
            difference = (found[name] - tensor).abs().max().item()
            largest = tensor.abs().max().item()
            zero = fnmatch.fnmatch(name, ZERO_GRADIENT.get(model, ""))
            floor = ZERO_GRADIENT_FLOOR if zero else FLOOR
            bound = max(relative * largest, floor)
            assert difference <= bound, f"{what} {name}: differs by {difference}, bound {bound}"
            if difference > floor:
                worst = max(worst, difference / largest)
    return worst


def check(
    model: nn.Module, batch: Any, graph: Any, plan: str, steps: int, *, clip: float, name: str
) -> None:
    """Asserts that a plan trains a model of the zoo like plain PyTorch on one device."""
    want = train_eager(model, batch, steps, lr=1e-3, clip=clip)
    got = train_plan(model, graph, plan, batch, steps, lr=1e-3, clip=clip)
    compare(got, want, model=name)


def check_communications(graph: Any, plan: str, has: Sequence[str], lacks: Sequence[str]) -> None:
    """Asserts that some communication's name has each word of `has`, and none one of `lacks`."""
    names = _core.communications(graph.core, _core.Plan(plan), cluster())
    for word in has:
        assert any(word in each for each in names), names
    for word in lacks:
        assert not any(word in each for each in names), names


def random_plan(graph: Any, seed: int, rows: int, devices: int) -> str:
    """Returns a random legal plan over the first devices of the cluster."""
    return _testing.random_plan(graph.core.text(), [f"a/{i}/0" for i in range(devices)], rows, seed)
