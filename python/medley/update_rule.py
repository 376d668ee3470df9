"""The base of every optimizer: hyperparameters, as values or functions of the step, and rules."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from medley import _core
from medley.schedules import Schedule, cycled_fields, is_torch_scheduler, scheduled

_CONSTANTS_ONLY = 3  # scalars of a rule: learning rate, step, clip scale (ops/update_ops.h)
_MORE = 5  # adds the share of an average and the largest element
Hyper = float | Schedule
Betas = tuple[Hyper, Hyper] | Callable[[int], tuple[float, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The base of all optimizers, with common fields. Values may be functions of the step, from 0.

    `max_norm` scales the gradient so that its norm over all parameters is at most this value. With
    `report_norm=False` and no `max_norm`, the norm is not computed and `Metrics.grad_norm` is 0.
    `max_value` then clips every element of the gradient.

    Example:
        rate = medley.cosine(3e-4, steps=10_000, warmup_steps=500)
        optimizer = medley.AdamW(lr=rate, weight_decay=0.1, max_norm=1.0)
        trainer = medley.Trainer(model, graph, plan, optimizer)
    """

    lr: Hyper = 1e-3  # learning rate, a function of the step, or a scheduler of PyTorch
    # maximum norm of the gradient over all parameters; None: no limit
    max_norm: Hyper | None = None
    max_value: Hyper | None = None  # maximum magnitude of a gradient element; None: no limit
    report_norm: bool = True  # False: `Metrics.grad_norm` is 0 without a limit
    average: Hyper | None = None  # in (0, 1): the share that an average of the weights retains
    loss_scale: float = 65536.0  # initial scale for devices in f16; a power of two
    loss_scale_steps: int = 2000  # steps until it doubles; it halves if gradients overflow

    kind: ClassVar[str] = ""  # name of the update op
    # Fields that are not values of the op.
    other_fields: ClassVar[frozenset[str]] = frozenset(("lr", "max_norm", "max_value", "average"))

    @property
    def name(self) -> str:
        """The name in messages and checkpoints."""
        return type(self).__name__

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step, counted from 0."""
        return self._number_at("lr", step)

    def scalars(self, step: int) -> list[list[float]]:
        """Returns the values of a step for each rule of `core`, without the step itself."""
        limit = self._number_at("max_norm", step) if callable(self.max_norm) else 1.0
        kept = self._number_at("average", step) if callable(self.average) else math.nan
        found = []
        for each in self.rules():
            values = [each.learning_rate(step), limit]
            if self._num_scalars(each) > _CONSTANTS_ONLY:
                clips = self._clips_values(each)
                largest = math.inf if clips is None else clips._number_at("max_value", step)
                values += [kept, largest, *each.numbers_at(step)]
            found.append(values)
        return found

    def at(self, step: int) -> Self:
        """Returns a copy with the hyperparameters of a step."""
        values = {name: _value_at(getattr(self, name), step) for name in self._functions()}
        try:
            return dataclasses.replace(self, **values) if values else self
        except ValueError as error:
            raise ValueError(f"{error}, in step {step}") from None

    def numbers_at(self, step: int) -> list[float]:
        """Returns the values of the op in a step, or none if they are constant."""
        return [float(x) for x in self.at(step).numbers().values()] if self._functions() else []

    def num_numbers_at(self) -> int:
        """Returns the number of values of `numbers_at`."""
        return len(self._constant().numbers()) if self._functions() else 0

    def numbers(self) -> dict[str, float]:
        """Returns the arguments of the op besides tensors, by name, in its order."""
        raise NotImplementedError

    def programs(self, dtypes: set[str], shapes: set[str]) -> tuple[dict[str, str], list[str]]:
        """Returns the graphs of the update by shape of the parameter, or "" for all, and the names
        of its states. Returns none for a built-in op."""
        return {}, []

    def rules(self) -> Sequence[Optimizer]:
        """Returns the optimizers that update, in the order of the rules of `core`."""
        return [self]

    def rule_of(self, graph: _core.Graph) -> dict[str, int]:
        """Returns the number of the rule by parameter. The first rule covers all others."""
        return {}

    def description(self) -> dict[str, Any]:
        """Returns the description of this optimizer in a checkpoint."""
        return {"kind": self.kind, **self.said_numbers(), **self._said()}

    def core(self, graph: _core.Graph, needs_norm: bool = False) -> _core.Optimizer:
        """Returns the rules for the parameters of a graph. Raises ValueError for a parameter that
        the optimizer cannot update."""
        return _core.Optimizer(*self.arguments(graph, needs_norm))

    def arguments(self, graph: _core.Graph, needs_norm: bool = False) -> tuple[Any, ...]:
        """Returns the arguments of `core`: lists, dicts, texts and numbers."""
        rules, rule_of = self.rules(), self.rule_of(graph)
        dtypes: list[set[str]] = [set() for _ in rules]  # dtypes of the arithmetic
        shapes: list[set[str]] = [set() for _ in rules]
        for kind, name, dtype, shape in graph.outputs:
            if kind == "gradient":
                number = rule_of.get(name, 0)
                rules[number].check_parameter(name, shape)
                dtypes[number].add("f64" if dtype == "f64" else "f32")
                shapes[number].add(shape)
        return (
            [
                (
                    each.kind,
                    [float(x) for x in each._constant().numbers().values()],
                    *each.programs(types, forms),
                    self._num_scalars(each),
                )
                for each, types, forms in zip(rules, dtypes, shapes, strict=True)
            ],
            rule_of,
            1.0 if callable(self.max_norm) else float(self.max_norm or 0),
            self.report_norm or needs_norm,
            0.5 if callable(self.average) else float(self.average or 0),
            float(self.loss_scale),
            int(self.loss_scale_steps),
        )

    def check_parameter(self, name: str, shape: str) -> None:
        """Raises ValueError if the optimizer cannot update this parameter."""

    # --- hyperparameters that are functions of the step ---

    def _functions(self) -> list[str]:
        """Returns the names of the fields that are or contain functions."""
        names = [each.name for each in dataclasses.fields(self)]
        return [
            name
            for name in names
            if name not in self.other_fields and _has_function(getattr(self, name))
        ]

    def _constant(self, stand_in: float = 1.0) -> Self:
        """Returns a copy with `stand_in` in place of each function. No step uses these values."""
        made = copy.copy(self)
        for name in self._functions():
            value = getattr(self, name)
            if callable(value):  # takes one argument, or as many as the class has
                usual = getattr(type(self), name, None)
                value = (value,) * len(usual) if isinstance(usual, tuple) else value
            object.__setattr__(made, name, _with(value, lambda _: stand_in))
        return made

    def _num_scalars(self, rule: Optimizer) -> int:
        more = rule.num_numbers_at()
        if more or callable(self.average) or self._clips_values(rule) is not None:
            return _MORE + more
        return _CONSTANTS_ONLY

    def _clips_values(self, rule: Optimizer) -> Optimizer | None:
        """Returns the optimizer with the limit on gradient elements for one of the rules, or
        None."""
        return next((each for each in (rule, self) if each.max_value is not None), None)

    def _number_at(self, field: str, step: int) -> float:
        found = _value_at(getattr(self, field), step)
        least, most = (0.0, 1.0) if field == "average" else (0.0, math.inf)
        try:
            number = float(found)
        except (TypeError, ValueError):
            number = math.nan
        if not (math.isfinite(number) and least <= number <= most):
            expected = "a number >= 0" if most == math.inf else "a number in [0, 1]"
            raise ValueError(
                f"{self.name}: {field}: found {found} in step {step}, expected {expected}"
            )
        return number

    # --- descriptions ---

    def said_numbers(self) -> dict[str, Any]:
        """Returns the values by name, for a checkpoint."""
        one, two = (self._constant(each).numbers() for each in (1.0, 2.0))
        return {
            name: number if number == two[name] else "a function of the step"
            for name, number in one.items()
        }

    def _said(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"max_norm": _said(self.max_norm or 0.0)}
        for name in ("max_value", "average"):
            if getattr(self, name) is not None:
                fields[name] = _said(getattr(self, name))
        return fields if self.report_norm else {**fields, "gradient_norm": False}

    # --- checks ---

    def _prepare(self, **at_least_zero: Hyper) -> None:
        """Reads the schedulers of PyTorch among the fields, and checks the values that apply to all
        steps."""
        self._take_scheduler()
        self._check(lr=self.lr, **at_least_zero)
        for name in ("max_norm", "max_value"):
            value = getattr(self, name)
            if not (value is None or callable(value) or (is_number(value) and value > 0)):
                self._refuse(name, value, "a number > 0 or a function of the step")
        average = self.average
        if not (average is None or callable(average) or (is_number(average) and 0 < average < 1)):
            self._refuse("average", average, "a number in (0, 1) or a function of the step")
        if not (self.loss_scale > 0 and math.frexp(self.loss_scale)[0] == 0.5):
            self._refuse("loss_scale", self.loss_scale, "a power of two, such as 65536")
        if self.loss_scale_steps < 1:
            self._refuse("loss_scale_steps", self.loss_scale_steps, "a number >= 1")
        if hasattr(self, "betas"):
            self._check_betas(self.betas)

    def _take_scheduler(self) -> None:
        if not is_torch_scheduler(self.lr):
            return
        scheduler: Any = self.lr
        object.__setattr__(self, "lr", scheduled(scheduler))
        for name in cycled_fields(scheduler):
            if not hasattr(self, name):
                kind = type(scheduler.optimizer).__name__
                self._refuse(
                    "lr",
                    f"{type(scheduler).__name__} of torch.optim.{kind}, which changes {name}",
                    f"one of a torch optimizer with what {self.name} has",
                )
            object.__setattr__(self, name, scheduled(scheduler, name))

    def _check(self, **at_least_zero: Hyper) -> None:
        for name, value in at_least_zero.items():
            if not (callable(value) or (is_number(value) and value >= 0)):
                self._refuse(name, value, "a number >= 0 or a function of the step")

    def _check_betas(self, betas: Any) -> None:
        if callable(betas):
            return
        if not (isinstance(betas, (tuple, list)) and len(betas) == 2):
            self._refuse("betas", repr(betas), "two numbers in [0, 1), or functions of the step")
        for beta in betas:
            if not (callable(beta) or (is_number(beta) and 0 <= beta < 1)):
                self._refuse("betas", beta, "a number in [0, 1) or a function of the step")

    def _refuse(self, field: str, found: Any, expected: str) -> None:
        raise ValueError(f"{self.name}: {field}: found {found}, expected {expected}")


def is_number(value: Any) -> bool:
    """Returns whether `value` is a finite number, or a tensor of one."""
    try:
        return not isinstance(value, str) and math.isfinite(value)
    except (TypeError, ValueError, RuntimeError):
        return False


def _has_function(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(callable(each) for each in value.values())
    if isinstance(value, (tuple, list)):
        return any(callable(each) for each in value)
    return callable(value)


def _with(value: Any, number_of: Any) -> Any:
    """Returns a hyperparameter with each function replaced by its `number_of`."""
    if isinstance(value, Mapping):
        return {name: _with(each, number_of) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_with(each, number_of) for each in value)
    return number_of(value) if callable(value) else value


def _value_at(value: Any, step: int) -> Any:
    return _with(value, lambda function: function(step))


def _said(value: Hyper) -> float | str:
    return "a function of the step" if callable(value) else float(value)
