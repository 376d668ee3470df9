"""Optimizers as descriptions: ops of the program compute them, each device its shards."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from medley import _core
from medley.schedules import Schedule
from medley.shapes import sizes_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """What all optimizers have. `lr` is a number or a function of the step, which starts at 0.

    `max_norm` scales the gradient so that its norm over all parameters is at most that. Without
    `report_norm` (and `max_norm`) the norm is not computed and `Metrics.grad_norm` is 0.
    """

    lr: float | Schedule = 1e-3  # learning rate, or a function of the step, which starts at 0
    max_norm: float | None = None  # of the gradient over all parameters; None: no limit
    report_norm: bool = True  # False: `Metrics.grad_norm` is 0 unless there is a limit
    average: float | None = None  # in (0, 1): the share that an average of the weights keeps
    loss_scale: float = 65536.0  # the first one, where devices compute in f16; a power of two
    loss_scale_steps: int = 2000  # after which it doubles; it halves when gradients overflow

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step; the first one is 0."""
        found: Any = self.lr(step) if callable(self.lr) else self.lr
        try:
            rate = float(found)
        except (TypeError, ValueError):
            rate = math.nan
        if not (math.isfinite(rate) and rate >= 0):
            kind = type(self).__name__
            raise ValueError(f"{kind}: lr: found {found} in step {step}, expected a number >= 0")
        return rate

    kind: ClassVar[str] = ""  # of the op that updates

    def learning_rates(self, step: int) -> list[float]:
        """Returns the learning rates of a step, of each rule of `core`."""
        return [self.learning_rate(step)]

    def numbers(self) -> dict[str, float]:
        """Returns what the op is given besides tensors, by name, in its order."""
        raise NotImplementedError

    def program(self, dtype: str) -> tuple[str, list[str]]:
        """Returns the graph of what it computes in this type, and the names of its states; nothing
        if it is one of ours."""
        return "", []

    def description(self) -> dict[str, Any]:
        """Returns what a checkpoint says of it."""
        return {"kind": self.kind, **self.numbers(), **self._norm()}

    def core(self, graph: _core.Graph, needs_norm: bool = False) -> _core.Optimizer:
        """Returns its rules for the parameters of a graph. Raises ValueError for a parameter that
        it cannot update."""
        return _core.Optimizer(*self.arguments(graph, needs_norm))

    def arguments(self, graph: _core.Graph, needs_norm: bool = False) -> tuple[Any, ...]:
        """Returns what `core` makes them of: lists, dicts, texts and numbers."""
        return self._arguments([self], {}, graph, needs_norm)

    def _arguments(
        self,
        rules: Sequence[Optimizer],
        rule_of: Mapping[str, int],
        graph: _core.Graph,
        needs_norm: bool,
    ) -> tuple[Any, ...]:
        dtypes: list[set[str]] = [set() for _ in rules]  # of the arithmetic
        for kind, name, dtype, shape in graph.outputs:
            if kind == "gradient":
                rules[rule_of.get(name, 0)].check_parameter(name, shape)
                dtypes[rule_of.get(name, 0)].add("f64" if dtype == "f64" else "f32")
        for each, found in zip(rules, dtypes, strict=True):
            if isinstance(each, Pointwise) and len(found) > 1:
                raise ValueError(
                    "pointwise: found parameters of f32 and f64, expected a group each"
                )
        return (
            [
                (
                    each.kind,
                    [float(x) for x in each.numbers().values()],
                    *each.program(min(dtype, default="f32")),
                )
                for each, dtype in zip(rules, dtypes, strict=True)
            ],
            dict(rule_of),
            float(self.max_norm or 0),
            self.report_norm or needs_norm,
            float(self.average or 0),
            float(self.loss_scale),
            int(self.loss_scale_steps),
        )

    def check_parameter(self, name: str, shape: str) -> None:
        """Raises ValueError for a parameter that it cannot update."""

    def _norm(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"max_norm": float(self.max_norm or 0)}
        if self.average is not None:
            fields["average"] = float(self.average)
        return fields if self.report_norm else {**fields, "gradient_norm": False}

    def _check_betas(self, betas: Sequence[float]) -> None:
        kind, pair = type(self).__name__, isinstance(betas, (tuple, list)) and len(betas) == 2
        if not pair:
            raise ValueError(f"{kind}: betas: found {betas!r}, expected two numbers in [0, 1)")
        for beta in betas:
            if not (_is_number(beta) and 0 <= beta < 1):
                raise ValueError(f"{kind}: betas: found {beta}, expected a number in [0, 1)")

    def _check(self, **at_least_zero: float) -> None:
        for name, value in at_least_zero.items():
            if not (_is_number(value) and value >= 0):
                raise ValueError(
                    f"{type(self).__name__}: {name}: found {value}, expected a number >= 0"
                )
        if not (callable(self.lr) or (_is_number(self.lr) and self.lr >= 0)):
            raise ValueError(
                f"{type(self).__name__}: lr: found {self.lr}, expected a number >= 0 or a "
                "function of the step"
            )
        if self.average is not None and not (_is_number(self.average) and 0 < self.average < 1):
            raise ValueError(
                f"{type(self).__name__}: average: found {self.average}, expected a number in (0, 1)"
            )
        if not (self.loss_scale > 0 and math.frexp(self.loss_scale)[0] == 0.5):
            raise ValueError(
                f"{type(self).__name__}: loss_scale: found {self.loss_scale}, expected a power of "
                "two, such as 65536"
            )
        if self.loss_scale_steps < 1:
            raise ValueError(
                f"{type(self).__name__}: loss_scale_steps: found {self.loss_scale_steps}, expected "
                "a number >= 1"
            )
        if self.max_norm is not None and not (_is_number(self.max_norm) and self.max_norm > 0):
            raise ValueError(
                f"{type(self).__name__}: max_norm: found {self.max_norm}, expected a number > 0"
            )


def _is_number(value: Any) -> bool:
    """Returns whether this is a finite number, or a tensor of one."""
    try:
        return not isinstance(value, str) and math.isfinite(value)
    except (TypeError, ValueError, RuntimeError):
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """As torch.optim.AdamW, with an fp32 master copy of 16-bit parameters."""

    kind: ClassVar[str] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)  # each in [0, 1)
    eps: float = 1e-8  # added to the root of the second moment
    weight_decay: float = 0.01  # decoupled, times the learning rate

    def __post_init__(self) -> None:
        self._check(eps=self.eps, weight_decay=self.weight_decay)
        self._check_betas(self.betas)

    def numbers(self) -> dict[str, float]:
        """Returns what the op is given besides tensors, by name, in its order."""
        return {
            "beta1": float(self.betas[0]),
            "beta2": float(self.betas[1]),
            "epsilon": float(self.eps),
            "weight_decay": float(self.weight_decay),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW8bit(AdamW):
    """AdamW whose moments are kept in eight bits (https://arxiv.org/abs/2110.02861), each row with
    its scale: a quarter of their memory."""

    kind: ClassVar[str] = "adamw8"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(AdamW):
    """As torch.optim.Adam: the weight decay is added to the gradient."""

    kind: ClassVar[str] = "adam"
    weight_decay: float = 0.0  # added to the gradient


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """As torch.optim.SGD without dampening."""

    kind: ClassVar[str] = "sgd"
    momentum: float = 0.0  # 0: nothing is kept
    weight_decay: float = 0.0  # added to the gradient
    nesterov: bool = False  # needs a momentum

    def __post_init__(self) -> None:
        self._check(momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and self.momentum == 0:
            raise ValueError("SGD: nesterov: found momentum 0, expected a momentum > 0")

    def numbers(self) -> dict[str, float]:
        """Returns what the op is given besides tensors, by name, in its order."""
        return {
            "momentum": float(self.momentum),
            "weight_decay": float(self.weight_decay),
            "nesterov": self.nesterov,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lion(Optimizer):
    """The sign of a moment (https://arxiv.org/abs/2302.06675): one number is kept per parameter."""

    kind: ClassVar[str] = "lion"
    lr: float | Schedule = 1e-4  # a third to a tenth of AdamW's
    betas: tuple[float, float] = (0.9, 0.99)  # each in [0, 1): of the step, of what is kept
    weight_decay: float = 0.0  # decoupled, times the learning rate

    def __post_init__(self) -> None:
        self._check(weight_decay=self.weight_decay)
        self._check_betas(self.betas)

    def numbers(self) -> dict[str, float]:
        """Returns what the op is given besides tensors, by name, in its order."""
        return {
            "beta1": float(self.betas[0]),
            "beta2": float(self.betas[1]),
            "weight_decay": float(self.weight_decay),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor(Optimizer):
    """As torch.optim.Adafactor: of a matrix, second moments of rows and columns are kept.

    Every device that has a part of a parameter computes all of its step.
    """

    kind: ClassVar[str] = "adafactor"
    lr: float | Schedule = 1e-2  # at most, relative to the size of the parameter
    beta2_decay: float = -0.8  # exponent by which the decay of the moments falls
    eps: tuple[float | None, float] = (None, 1e-3)  # of the moments' roots, of parameters' sizes
    d: float = 1.0  # the largest mean square of a step
    weight_decay: float = 0.0  # decoupled, times the learning rate

    def __post_init__(self) -> None:
        self._check(
            weight_decay=self.weight_decay, eps=self.eps[1], **{"eps[0]": self.eps[0] or 0.0}
        )
        if self.beta2_decay > 0:
            raise ValueError(
                f"Adafactor: beta2_decay: found {self.beta2_decay}, expected a number <= 0"
            )
        if not self.d > 0:
            raise ValueError(f"Adafactor: d: found {self.d}, expected a number > 0")

    def numbers(self) -> dict[str, float]:
        """Returns what the op is given besides tensors, by name, in its order."""
        return {
            "beta2_decay": float(self.beta2_decay),
            "epsilon": float(self.eps[0] or 0.0),
            "least_size": float(self.eps[1]),
            "d": float(self.d),
            "weight_decay": float(self.weight_decay),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """As torch.optim.Muon: of matrices only, others need another optimizer (`Groups`).

    Every device that has a part of a matrix computes all of its step. The iteration is in bf16, of
    f64 parameters in f64.
    """

    kind: ClassVar[str] = "muon"
    weight_decay: float = 0.1  # decoupled, times the learning rate
    momentum: float = 0.95
    nesterov: bool = True
    coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)  # of the iteration
    eps: float = 1e-7  # the least norm of a step before the iteration
    iterations: int = 5
    match_adamw: bool = False  # steps of AdamW's size, so that its learning rates fit

    def __post_init__(self) -> None:
        self._check(
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            eps=self.eps,
            iterations=self.iterations,
        )

    def numbers(self) -> dict[str, float]:
        """Returns what the op is given besides tensors, by name, in its order."""
        a, b, c = self.coefficients
        return {
            "momentum": float(self.momentum),
            "weight_decay": float(self.weight_decay),
            "a": float(a),
            "b": float(b),
            "c": float(c),
            "epsilon": float(self.eps),
            "iterations": float(self.iterations),
            "nesterov": self.nesterov,
            "match_adamw": self.match_adamw,
        }

    def check_parameter(self, name: str, shape: str) -> None:
        """Raises ValueError for a parameter that is no matrix."""
        if len(sizes_of(shape)) != 2:
            raise ValueError(
                f"Muon: {name}: found a parameter of shape {shape}, expected a matrix: give the "
                "others another optimizer, medley.Groups(groups=[(lambda name, shape: "
                'len(shape) == 2, medley.Muon(...)), ("*", medley.AdamW(...))])'
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pointwise(Optimizer):
    """An optimizer of one's own, made by `pointwise`."""

    function: Callable[..., Any]
    state: tuple[str, ...] = ()  # names of what is kept of each parameter, zeros at first
    hyper: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check()
        if len(self.state) > _MOST_STATES:
            raise ValueError(
                f"pointwise: state: found {len(self.state)} names, expected at most {_MOST_STATES}"
            )
        for name in self.state:
            if not name.isidentifier() or name in _TAKEN or self.state.count(name) > 1:
                raise ValueError(
                    f'pointwise: state: found {name!r}, expected names such as "exp_avg", each once'
                )

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The op that updates, of so many states."""
        return f"pointwise{len(self.state)}"

    def numbers(self) -> dict[str, float]:
        """Returns nothing: its numbers are in the program."""
        return {}

    def program(self, dtype: str) -> tuple[str, list[str]]:
        """Returns the graph of what it computes in this type, and the names of its states."""
        from medley.capture.pointwise import capture_pointwise

        text = capture_pointwise(self.function, len(self.state), dict(self.hyper), dtype)
        return text, list(self.state)

    def description(self) -> dict[str, Any]:
        """Returns what a checkpoint says of it."""
        name = getattr(self.function, "__name__", "function")
        return {"kind": self.kind, "function": name, **self.hyper, **self._norm()}


_MOST_STATES = 4
_TAKEN = ("master", "average")


def pointwise(
    function: Callable[..., Any],
    *,
    state: Sequence[str] = (),
    hyper: Mapping[str, float] | None = None,
    **options: Any,
) -> Pointwise:
    """Returns an optimizer of one's own, on any shards, from a function of one element.

    `function(x, grad, *state, lr=, step=, **hyper)` returns the new x and the new state, a tensor
    each of the shape of `x`; what each element becomes depends on it alone. It is captured once, as
    a model is. `lr` and `step`, from 1 on, are tensors without dims. `options` are those of every
    optimizer: lr, max_norm.

        def rmsprop(x, grad, square, *, lr, step, alpha):
            square = alpha * square + (1 - alpha) * grad * grad
            return x - lr * grad / (square.sqrt() + 1e-8), square

        medley.optimizer.pointwise(rmsprop, state=["square"], hyper={"alpha": 0.99}, lr=1e-2)
    """
    return Pointwise(function=function, state=tuple(state), hyper=dict(hyper or {}), **options)


Match = str | Callable[[str, tuple[int, ...]], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups(Optimizer):
    """Several optimizers: a parameter has the first whose pattern or function takes it.

    A pattern is of names, `*` any characters; a function takes name and shape. The learning rates
    are those of the optimizers; `max_norm` is of all parameters together.
    """

    groups: Sequence[tuple[Match, Optimizer]]

    def __post_init__(self) -> None:
        self._check()
        listed = isinstance(self.groups, (list, tuple)) and len(self.groups) > 0
        if not (listed and all(isinstance(g, (list, tuple)) and len(g) == 2 for g in self.groups)):
            raise ValueError(
                f"Groups: found {self.groups!r}, expected pairs of a pattern and an optimizer"
            )
        for match, optimizer in self.groups:
            if not (isinstance(match, str) or callable(match)):
                raise ValueError(
                    f"Groups: found {match!r}, expected a pattern of names, or a function of name "
                    "and shape"
                )
            if not isinstance(optimizer, Optimizer) or isinstance(optimizer, Groups):
                raise ValueError(f"Groups: found {optimizer!r}, expected medley.AdamW(...) or like")
            if optimizer.max_norm is not None:
                raise ValueError("Groups: max_norm: found that of a group, expected that of Groups")

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of the first group."""
        return self.groups[0][1].learning_rate(step)

    def learning_rates(self, step: int) -> list[float]:
        """Returns the learning rates of a step, of each group."""
        return [optimizer.learning_rate(step) for _, optimizer in self.groups]

    def description(self) -> dict[str, Any]:
        """Returns what a checkpoint says of it."""
        facts: dict[str, Any] = {
            "kind": " ".join(dict.fromkeys(each.kind for _, each in self.groups))
        }
        for i, (match, optimizer) in enumerate(self.groups):
            name = match if isinstance(match, str) else getattr(match, "__name__", "function")
            numbers = ", ".join(f"{key} {value}" for key, value in optimizer.numbers().items())
            facts[f"group {i}"] = f"{name}: {optimizer.kind}, {numbers}"
        return {**facts, **self._norm()}

    def arguments(self, graph: _core.Graph, needs_norm: bool = False) -> tuple[Any, ...]:
        """Raises ValueError for a parameter that no group takes."""
        rule_of = {}
        for kind, name, _, shape in graph.outputs:
            if kind != "gradient":
                continue
            sizes = tuple(sizes_of(shape))
            found = [i for i, (match, _) in enumerate(self.groups) if _takes(match, name, sizes)]
            if not found:
                raise ValueError(
                    f'Groups: {name}: found no group that takes it, expected ("*", ...) as the last'
                )
            rule_of[name] = found[0]
        return self._arguments([each for _, each in self.groups], rule_of, graph, needs_norm)


def _takes(match: Match, name: str, shape: tuple[int, ...]) -> bool:
    return fnmatch.fnmatchcase(name, match) if isinstance(match, str) else match(name, shape)


def as_optimizer(optimizer: Optimizer | None) -> Optimizer:
    """Returns AdamW if there is none. Raises ValueError for what is no optimizer of Medley."""
    if optimizer is None:
        return AdamW()
    if isinstance(optimizer, Optimizer):
        return optimizer
    found = optimizer if isinstance(optimizer, type) else type(optimizer)
    raise ValueError(
        f"optimizer: found {found.__module__}.{found.__qualname__}, expected medley.AdamW(...) or "
        "another of medley's: each device updates its own shards"
    )
