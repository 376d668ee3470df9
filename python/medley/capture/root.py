"""One training step of a model as a function of tensors, for the rehearsal and the trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from medley import custom_ops
from medley.capture import buffers
from medley.capture.batch import Batch, Beside, loss_of
from medley.capture.gradient_hooks import Hooked, attach
from medley.capture.interception import Interceptor, intercept
from medley.capture.row_counts import has_a_mean, mean_loss
from medley.capture.state import Attributes


class Root(nn.Module):
    """The model with a positional call: first the random state, then the batch's tensors. Every
    call starts from the attributes of the modules at construction."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        interceptor: Interceptor,
        hooks: Sequence[Hooked],
        autocast: torch.dtype | None,
        beside: Beside | None = None,
    ) -> None:
        """`beside` selects further results from the output of the model. Their names become
        `metrics`."""
        super().__init__()
        self._beside = beside
        self.metrics: tuple[str, ...] = ()
        self.model = model
        self.attributes = Attributes(model)
        self._buffers_before = [
            (module._buffers, dict(module._buffers)) for module in model.modules()
        ]
        self._hooks = hooks
        self._attached: list[Any] = []
        self.assigned: set[buffers.Place] = set()  # buffers that forward reassigns
        self._autocast = autocast
        self._batch = batch
        self._interceptor = interceptor

    def forward(self, rng: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Returns the loss and metrics. Changes of buffers are in place."""
        self.restore()
        self._attach()
        with buffers.copied(self.model, self.assigned):
            return self._loss(rng, *tensors)

    def rehearse(self, rng: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Returns the loss of a call that starts from the state of the call before. Finds
        `assigned`."""
        self._attach()
        with buffers.kept(self.model, self.assigned):
            return self._loss(rng, *tensors)

    def restore(self) -> None:
        """Restores the attributes, and removes new buffers."""
        self.attributes.restore()
        for store, before in self._buffers_before:
            for name in list(store):
                if name not in before:
                    del store[name]
                elif before[name] is None:
                    store[name] = None

    def _attach(self) -> None:
        for handle in self._attached:
            handle.remove()
        self._attached = attach(self.model, self._hooks)

    def _loss(self, rng: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        with (
            custom_ops.use_rng(rng),
            intercept(self._interceptor),
            torch.autocast("cpu", self._autocast, self._autocast is not None),
        ):
            self._interceptor.refused.clear()
            self._interceptor.ops = 0
            result = self._batch.call(self.model, tensors)
            if self._interceptor.refused:  # the model caught it and computed something else
                raise self._interceptor.refused[0]
            loss = loss_of(result)
            if isinstance(loss, tuple):
                total = loss[0] if has_a_mean(loss[0]) else mean_loss(*loss)
            else:
                total = loss
            metrics = {} if self._beside is None else self._beside(result)
            self.metrics = tuple(metrics)
            return (total, *(each.detach().clone() for each in metrics.values()))


@contextlib.contextmanager
def started(root: Root) -> Iterator[Root]:
    """Yields the root, and restores the state changed by its calls at the end."""
    try:
        yield root
    finally:
        root.restore()


@contextlib.contextmanager
def fake_state(model: nn.Module, mode: FakeTensorMode) -> Iterator[None]:
    """Replaces parameters and buffers by fake CPU tensors inside the block. Tied ones stay tied."""

    def fake(tensor: Tensor) -> Tensor:
        with mode, torch.no_grad():
            empty = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(empty, requires_grad=tensor.requires_grad)
        return empty

    with replaced_state(model, fake):
        yield


@contextlib.contextmanager
def replaced_state(model: nn.Module, replace: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replaces parameters and buffers inside the block. Tied ones stay tied."""
    others: dict[int, Tensor] = {}
    before: list[tuple[dict[str, Any], str, Any]] = []
    stores: list[dict[str, Any]] = []
    for module in model.modules():
        stores += [module._parameters, module._buffers]
    try:
        for store in stores:
            for name, tensor in list(store.items()):
                if tensor is None:
                    continue
                if id(tensor) not in others:
                    others[id(tensor)] = replace(tensor)
                before.append((store, name, tensor))
                store[name] = others[id(tensor)]
        yield
    finally:
        for store, name, tensor in before:
            store[name] = tensor
