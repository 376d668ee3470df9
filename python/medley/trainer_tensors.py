"""Whole tensors of a trainer, read and set: parameters, and the state of its optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from medley import carried, whole_tensors
from medley.run.kept import AVERAGE, averages_of, loss_scale_of
from medley.shapes import sizes_of
from medley.whole_tensors import CARRIED, CONSTANT

if TYPE_CHECKING:
    from medley.graph import Graph
    from medley.optimizer import Optimizer
    from medley.run.job import Job

Made = TypeVar("Made")


class WholeTensors:
    """The part of a trainer that knows tensors by name, whatever the plan makes of them."""

    optimizer: Optimizer
    steps: int
    _model: nn.Module
    _graph: Graph
    _run: Any
    _job: Job | None
    _types: whole_tensors.Types
    _resets: dict[int, dict[str, Tensor]]  # by the step that begins with these values

    if TYPE_CHECKING:

        @property
        def is_elastic(self) -> bool: ...
        def together(self, make: Callable[[], Made]) -> Made: ...
        def _together(self, call: str) -> contextlib.AbstractContextManager[None]: ...
        def _go_on_after(self, read: Callable[[], int]) -> None: ...

    def parameters(self) -> dict[str, Tensor]:
        """Returns copies of all parameters, frozen ones too, tied ones once. In a job all processes
        call it."""
        return self._read_all("parameter")

    def buffers(self) -> dict[str, Tensor]:
        """Returns copies of the buffers that the graph uses. In a job all processes call it."""
        found = self._read_all("buffer")
        apart = (CONSTANT, CARRIED)
        return {name: value for name, value in found.items() if not name.startswith(apart)}

    def gradients(self) -> dict[str, Tensor]:
        """Returns the gradients of the last step by name, before clipping."""
        factor = 1 / loss_scale_of(self._run, self.optimizer.loss_scale, of_last_step=True)
        found = self._read_all("gradient")
        return found if factor == 1 else {name: value * factor for name, value in found.items()}

    def averages(self) -> dict[str, Tensor]:
        """Returns the averages of the trained parameters, which `average` of the optimizer keeps.
        In a job all processes call it."""
        if self.optimizer.average is None:
            raise ValueError("averages(): found an optimizer without, expected average=0.999")
        found = self.together(lambda: self._read_states(averages_of(self._run), "averages()"))
        return {name.removeprefix(AVERAGE): value for name, value in found.items()}

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by in the next step; 1 where no device computes in f16."""
        return loss_scale_of(self._run, self.optimizer.loss_scale)

    def _read_all(self, kind: str) -> dict[str, Tensor]:
        return self.together(lambda: self._read_kind(kind))

    def _read_kind(self, kind: str, among: Collection[str] | None = None) -> dict[str, Tensor]:
        if self._run is None:  # the plan does not use this device
            return {}
        return whole_tensors.read_kind(
            self._run, self._job, self._types, kind, among, self._together
        )

    def _read_states(self, among: Collection[str], call: str) -> dict[str, Tensor]:
        if self._run is None:
            return {}
        with self._together(call):
            return self._read_kind("state", among)

    def _start(self, read: Callable[[], Mapping[str, Tensor]]) -> None:
        constants = {**self._graph.constants, **carried.zeros(self._types)}
        whole_tensors.start(self._run, self._job, self._types, constants, read)

    # --- what rows carry from step to step ---

    def carried(self) -> dict[str, Tensor]:
        """Returns copies of what the next step reads of the last one, by the names of the inputs
        (`carry` of `capture`). In a job all processes call it."""
        self._reset()
        names = [f"{CARRIED}{name}" for name in self._graph.carry]
        found = self.together(lambda: self._read_kind("buffer", names))
        return {name.removeprefix(CARRIED): value for name, value in found.items()}

    def reset_carried(self, values: Mapping[str, Tensor] | None = None) -> None:
        """Lets the next step begin with zeros in place of what the last one has left, or with
        these values of the whole batch. In a job all processes call it."""
        if self._graph.carry or values:
            if not self.is_elastic:  # no step is made again
                self._resets.clear()
            self._resets[self.steps] = carried.checked(values or {}, self._types)

    def _reset(self) -> None:
        """Gives the next step what it is to begin with, before that is read."""
        if self._run is None or self.steps not in self._resets:
            return
        held = set(self._run.values)
        for name, value in self._resets[self.steps].items():
            if ("buffer", name) in held:
                self._run.load("buffer", name, value)

    # --- the state of an optimizer of PyTorch ---

    def optimizer_state_dict(self) -> dict[str, Any]:
        """Returns the optimizer's state as `state_dict()` of the one of the same name in
        torch.optim has it, which its `load_state_dict` takes.

        The parameters are those that are trained, in the order of `model.parameters()`; `Groups`
        are its groups, each in that order. In a job all processes call it.
        """
        from medley import torch_state

        names = torch_state.names_by_rule(self.optimizer, self._graph.core, self._model)
        found = self.together(lambda: self._read_states(self._moments(), "optimizer_state_dict()"))
        return torch_state.write(self.optimizer, names, found, self.steps)

    def load_optimizer_state(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        names: Sequence[str] | None = None,
        step: int | None = None,
    ) -> None:
        """Takes what `state_dict()` of an optimizer of torch.optim has given, or a list of several
        for `Groups`; training goes on from its step.

        `names` are the parameters in the order of the optimizer's, which otherwise is that of
        `optimizer_state_dict`. SGD and Muon do not say the `step`. Hyperparameters stay those of
        this optimizer. In a job all processes call it, each with the whole state.
        """
        from medley import torch_state

        shapes = {name: shape for (_, name), (_, shape) in self._types.items()}
        order = torch_state.names_by_rule(self.optimizer, self._graph.core, self._model)

        def read() -> int:
            wanted = {name: sizes_of(shapes[name.partition(":")[2]]) for name in self._moments()}
            rule, model = self.optimizer, self._model
            with self._together("load_optimizer_state()"):
                found, made = torch_state.read(rule, order, model, wanted, state, names)
                steps = made if made is not None else step
                if steps is None:
                    raise ValueError(
                        f"load_optimizer_state(): found a state of {rule.name} that does not say "
                        "its step, expected also step=..., how many were made"
                    )
                for name, value in found.items():
                    dtype = whole_tensors.dtype_of(self._types, "state", name)
                    self._run.load("state", name, value.detach().cpu().to(dtype).contiguous())
            return steps

        self._go_on_after(read)

    def _moments(self) -> list[str]:
        """Returns the names of what the optimizer keeps of parameters, master copies apart."""
        if self._run is None:  # the plan does not use this device
            return []
        return [
            name
            for kind, name in self._run.values
            if kind == "state" and ":" in name and not name.startswith((AVERAGE, "master:"))
        ]
