"""Whole tensors of a trainer, read and set: parameters and optimizer state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from medley import carried, whole_tensors
from medley.run.sessions import go_on_after
from medley.shapes import sizes_of
from medley.whole_tensors import CARRIED, CONSTANT

if TYPE_CHECKING:
    from medley.engine import Engine
    from medley.run.sessions import Session

AVERAGE = "average:"  # prefix of the name of a parameter
_SCALE = ("state", "loss_scale")  # as in ops/update_ops.h


class WholeTensors:
    """The part of a trainer that accesses whole tensors by name under any plan."""

    engine: Engine
    session: Session

    def parameters(self) -> dict[str, Tensor]:
        """Returns copies of all parameters, with frozen ones, tied ones once. Collective."""
        return self._read_all("parameter")

    def buffers(self) -> dict[str, Tensor]:
        """Returns copies of the buffers that the graph uses. Collective."""
        found = self._read_all("buffer")
        apart = (CONSTANT, CARRIED)
        return {name: value for name, value in found.items() if not name.startswith(apart)}

    def gradients(self) -> dict[str, Tensor]:
        """Returns the gradients of the last step by name, before clipping."""
        factor = 1 / loss_scale_of(
            self.engine.run, self.engine.optimizer.loss_scale, of_last_step=True
        )
        found = self._read_all("gradient")
        return found if factor == 1 else {name: value * factor for name, value in found.items()}

    def averages(self) -> dict[str, Tensor]:
        """Returns the averages of the trained parameters, maintained by `average` of the optimizer.
        Collective."""
        if self.engine.optimizer.average is None:
            raise ValueError("averages(): found an optimizer without, expected average=0.999")
        found = self.session.together(
            lambda: self._read_states(averages_of(self.engine.run), "averages()")
        )
        return {name.removeprefix(AVERAGE): value for name, value in found.items()}

    @property
    def loss_scale(self) -> float:
        """The factor of the loss in the next step; 1 if no device computes in f16."""
        return loss_scale_of(self.engine.run, self.engine.optimizer.loss_scale)

    def _read_all(self, kind: str) -> dict[str, Tensor]:
        return self.session.together(lambda: self.engine.read_kind(kind))

    def _read_states(self, among: Collection[str], call: str) -> dict[str, Tensor]:
        if self.engine.run is None:
            return {}
        with self.engine.together(call):
            return self.engine.read_kind("state", among)

    # --- carried values ---

    def carried(self) -> dict[str, Tensor]:
        """Returns copies of the carried values that the next step reads, by input (`carry` of
        `capture`). Collective."""
        self.engine.reset()
        names = [f"{CARRIED}{name}" for name in self.engine.graph.carry]
        found = self.session.together(lambda: self.engine.read_kind("buffer", names))
        return {name.removeprefix(CARRIED): value for name, value in found.items()}

    def reset_carried(self, values: Mapping[str, Tensor] | None = None) -> None:
        """Replaces the carried values of the next step by zeros, or by `values` of the whole batch.
        Collective."""
        if self.engine.graph.carry or values:
            if not self.session.is_elastic:  # no step is repeated
                self.engine.resets.clear()
            self.engine.resets[self.engine.steps] = carried.checked(values or {}, self.engine.types)

    # --- the state of an optimizer of PyTorch ---

    def optimizer_state_dict(self) -> dict[str, Any]:
        """Returns the optimizer's state as the `state_dict()` of the torch.optim class of the same
        name. Its `load_state_dict` accepts the result. The parameters are the trained ones in the
        order of `model.parameters()`; `Groups` are its groups, each in that order.
        Collective."""
        from medley import torch_state

        names = torch_state.names_by_rule(
            self.engine.optimizer, self.engine.graph.core, self.engine.model
        )
        found = self.session.together(
            lambda: self._read_states(self._moments(), "optimizer_state_dict()")
        )
        return torch_state.write(self.engine.optimizer, names, found, self.engine.steps)

    def load_optimizer_state(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        names: Sequence[str] | None = None,
        step: int | None = None,
    ) -> None:
        """Reads the `state_dict()` of an optimizer of torch.optim, or a list of several for
        `Groups`. Training resumes from its step. `names` are the parameters in the order of the
        optimizer, by default that of `optimizer_state_dict`. SGD and Muon do not record the `step`.
        Hyperparameters stay those of this optimizer. Collective, with the whole state in each."""
        from medley import torch_state

        shapes = {name: shape for (_, name), (_, shape) in self.engine.types.items()}
        order = torch_state.names_by_rule(
            self.engine.optimizer, self.engine.graph.core, self.engine.model
        )

        def read() -> list[int]:
            wanted = {name: sizes_of(shapes[name.partition(":")[2]]) for name in self._moments()}
            rule, model = self.engine.optimizer, self.engine.model
            with self.engine.together("load_optimizer_state()"):
                found, made = torch_state.read(rule, order, model, wanted, state, names)
                steps = made if made is not None else step
                if steps is None:
                    raise ValueError(
                        f"load_optimizer_state(): found a state of {rule.name} that does not say "
                        "its step, expected also step=..., how many were made"
                    )
                for name, value in found.items():
                    dtype = whole_tensors.dtype_of(self.engine.types, "state", name)
                    self.engine.run.load("state", name, value.detach().cpu().to(dtype).contiguous())
            return [steps]

        go_on_after(self.session, read)

    def _moments(self) -> list[str]:
        """Returns the names of the optimizer's states, except master copies."""
        if self.engine.run is None:  # the plan does not use this device
            return []
        return [
            name
            for kind, name in self.engine.run.values
            if kind == "state" and ":" in name and not name.startswith((AVERAGE, "master:"))
        ]


def loss_scale_of(run: Any, first: float, of_last_step: bool = False) -> float:
    """Returns the scale of the loss in the next step of a run, or in the last one; 1 without
    scaling."""
    if run is None or _SCALE not in run.values:
        return 1.0
    state = run.shard(*_SCALE, 0)
    return 1.0 if state is None else first * (1 + float(state[3 if of_last_step else 0]))


def averages_of(run: Any) -> list[str]:
    """Returns the names of the averages that a run maintains."""
    if run is None:
        return []
    return [name for kind, name in run.values if kind == "state" and name.startswith(AVERAGE)]
