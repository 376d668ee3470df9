"""Optimizers as descriptions: ops of the program compute them, each device its shards."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from medley import _core
from medley.shapes import sizes_of
from medley.update_rule import Betas, Hyper
from medley.update_rule import Optimizer as Optimizer
from medley.written_optimizers import Adadelta as Adadelta
from medley.written_optimizers import Adagrad as Adagrad
from medley.written_optimizers import Adamax as Adamax
from medley.written_optimizers import NAdam as NAdam
from medley.written_optimizers import RAdam as RAdam
from medley.written_optimizers import RMSprop as RMSprop
from medley.written_optimizers import Rprop as Rprop
from medley.written_optimizers import pointwise as pointwise
from medley.written_optimizers import whole as whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Equals torch.optim.AdamW, with an fp32 master copy of 16-bit parameters."""

    kind: ClassVar[str] = "adamw"
    betas: Betas = (0.9, 0.999)  # each in [0, 1)
    eps: Hyper = 1e-8  # added to the root of the second moment
    weight_decay: Hyper = 0.01  # decoupled, times the learning rate

    def __post_init__(self) -> None:
        self._prepare(eps=self.eps, weight_decay=self.weight_decay)

    def numbers(self) -> dict[str, float]:
        return {
            "beta1": _number(self.betas, 0),
            "beta2": _number(self.betas, 1),
            "epsilon": _number(self.eps),
            "weight_decay": _number(self.weight_decay),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW8bit(AdamW):
    """AdamW with 8-bit moments (https://arxiv.org/abs/2110.02861) and a scale per row: a quarter of
    their memory."""

    kind: ClassVar[str] = "adamw8"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(AdamW):
    """Equals torch.optim.Adam: the weight decay is added to the gradient."""

    kind: ClassVar[str] = "adam"
    weight_decay: Hyper = 0.0  # added to the gradient


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Equals torch.optim.SGD without dampening."""

    kind: ClassVar[str] = "sgd"
    momentum: Hyper = 0.0  # 0: no state
    weight_decay: Hyper = 0.0  # added to the gradient
    nesterov: bool = False  # requires a momentum

    def __post_init__(self) -> None:
        self._prepare(momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and self.momentum == 0:
            raise ValueError("SGD: nesterov: found momentum 0, expected a momentum > 0")

    def numbers(self) -> dict[str, float]:
        return {
            "momentum": _number(self.momentum),
            "weight_decay": _number(self.weight_decay),
            "nesterov": self.nesterov,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lion(Optimizer):
    """The sign of one moment per parameter (https://arxiv.org/abs/2302.06675)."""

    kind: ClassVar[str] = "lion"
    lr: Hyper = 1e-4  # a third to a tenth of AdamW's
    betas: Betas = (0.9, 0.99)  # each in [0, 1): for the step, for the moment
    weight_decay: Hyper = 0.0  # decoupled, times the learning rate

    def __post_init__(self) -> None:
        self._prepare(weight_decay=self.weight_decay)

    def numbers(self) -> dict[str, float]:
        return {
            "beta1": _number(self.betas, 0),
            "beta2": _number(self.betas, 1),
            "weight_decay": _number(self.weight_decay),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor(Optimizer):
    """Equals torch.optim.Adafactor: stores second moments of the rows and columns of a matrix.
    Every device with a part of a parameter computes the whole step of the parameter."""

    kind: ClassVar[str] = "adafactor"
    lr: Hyper = 1e-2  # maximum, relative to the size of the parameter
    beta2_decay: Hyper = -0.8  # exponent at which the decay of the moments falls
    # minimum of the moments' roots, of parameters' sizes
    eps: tuple[Hyper | None, Hyper] = (None, 1e-3)
    d: Hyper = 1.0  # maximum mean square of a step
    weight_decay: Hyper = 0.0  # decoupled, times the learning rate

    def __post_init__(self) -> None:
        self._prepare(
            weight_decay=self.weight_decay, eps=self.eps[1], **{"eps[0]": self.eps[0] or 0.0}
        )
        if not (callable(self.beta2_decay) or self.beta2_decay <= 0):
            self._refuse("beta2_decay", self.beta2_decay, "a number <= 0")
        if not (callable(self.d) or self.d > 0):
            self._refuse("d", self.d, "a number > 0")

    def numbers(self) -> dict[str, float]:
        return {
            "beta2_decay": _number(self.beta2_decay),
            "epsilon": _number(self.eps[0] or 0.0),
            "least_size": _number(self.eps[1]),
            "d": _number(self.d),
            "weight_decay": _number(self.weight_decay),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Equals torch.optim.Muon. Takes only matrices: combine it with another optimizer in `Groups`.
    Every device with a part of a matrix computes the whole step of the matrix. The iteration is in
    bf16, or in f64 for f64 parameters."""

    kind: ClassVar[str] = "muon"
    weight_decay: Hyper = 0.1  # decoupled, times the learning rate
    momentum: Hyper = 0.95
    nesterov: bool = True
    # coefficients of the iteration
    coefficients: tuple[Hyper, Hyper, Hyper] = (3.4445, -4.775, 2.0315)
    eps: Hyper = 1e-7  # minimum norm of a step before the iteration
    iterations: int = 5
    match_adamw: bool = False  # scales steps to the size of AdamW's, for the same learning rates

    def __post_init__(self) -> None:
        self._prepare(
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            eps=self.eps,
            iterations=self.iterations,
        )

    def numbers(self) -> dict[str, float]:
        return {
            "momentum": _number(self.momentum),
            "weight_decay": _number(self.weight_decay),
            "a": _number(self.coefficients, 0),
            "b": _number(self.coefficients, 1),
            "c": _number(self.coefficients, 2),
            "epsilon": _number(self.eps),
            "iterations": _number(self.iterations),
            "nesterov": self.nesterov,
            "match_adamw": self.match_adamw,
        }

    def check_parameter(self, name: str, shape: str) -> None:
        """Raises ValueError if a parameter is no matrix."""
        if len(sizes_of(shape)) != 2:
            raise ValueError(
                f"Muon: {name}: found a parameter of shape {shape}, expected a matrix: give the "
                "others another optimizer, medley.Groups(groups=[(lambda name, shape: "
                'len(shape) == 2, medley.Muon(...)), ("*", medley.AdamW(...))])'
            )


def _number(value: Any, place: int | None = None) -> float:
    return float(value if place is None else value[place])


Match = str | Callable[[str, tuple[int, ...]], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups(Optimizer):
    """Several optimizers. A parameter uses the first one whose pattern or function matches.

    A pattern matches names, with `*` for any characters. A function takes name and shape. Each
    optimizer has its own learning rate. `max_norm` covers all parameters together.

    Example:
        matrices = lambda name, shape: len(shape) == 2
        groups = [(matrices, medley.Muon(lr=2e-2)), ("*", medley.AdamW(lr=3e-4))]
        optimizer = medley.Groups(groups=groups, max_norm=1.0)
    """

    groups: Sequence[tuple[Match, Optimizer]]

    other_fields: ClassVar[frozenset[str]] = Optimizer.other_fields | {"groups"}

    def __post_init__(self) -> None:
        self._prepare()
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
            for field in ("max_norm", "average"):
                if getattr(optimizer, field) is not None:
                    raise ValueError(
                        f"Groups: {field}: found that of a group, expected that of Groups"
                    )

    def rules(self) -> Sequence[Optimizer]:
        return [optimizer for _, optimizer in self.groups]

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of the first group."""
        return self.rules()[0].learning_rate(step)

    def numbers(self) -> dict[str, float]:
        """Returns an empty dict: the groups have the values."""
        return {}

    def description(self) -> dict[str, Any]:
        kinds = dict.fromkeys(each.description()["kind"] for each in self.rules())
        facts: dict[str, Any] = {"kind": " ".join(kinds)}
        for i, (match, optimizer) in enumerate(self.groups):
            name = match if isinstance(match, str) else getattr(match, "__name__", "function")
            kind, said = optimizer.description()["kind"], optimizer.said_numbers()
            numbers = ", ".join(f"{key} {value}" for key, value in said.items())
            facts[f"group {i}"] = f"{name}: {kind}, {numbers}"
        return {**facts, **self._said()}

    def rule_of(self, graph: _core.Graph) -> dict[str, int]:
        """Returns the rule of each parameter. Raises ValueError for a parameter without a group."""
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
        return rule_of


def _takes(match: Match, name: str, shape: tuple[int, ...]) -> bool:
    return fnmatch.fnmatchcase(name, match) if isinstance(match, str) else match(name, shape)


def as_optimizer(optimizer: Optimizer | None) -> Optimizer:
    """Returns AdamW for None. Raises ValueError if `optimizer` is no optimizer of Medley."""
    if optimizer is None:
        return AdamW()
    if isinstance(optimizer, Optimizer):
        return optimizer
    found = optimizer if isinstance(optimizer, type) else type(optimizer)
    raise ValueError(
        f"optimizer: found {found.__module__}.{found.__qualname__}, expected medley.AdamW(...), "
        "another of medley's, or medley.from_torch(optimizer, model): each device updates its own "
        "shards"
    )
