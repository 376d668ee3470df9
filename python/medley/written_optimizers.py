"""Optimizers that are functions of tensors: your own, and short ones of PyTorch. A function is
captured once as a graph, which each device with a part of the parameter computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from medley.shapes import sizes_of
from medley.update_rule import Betas, Hyper, Optimizer, is_number

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]
# takes the shape of the parameter; None: the same shape
StateShape = Callable[[Shape], Sequence[int]] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written(Optimizer):
    """An optimizer whose update is a function of tensors."""

    # whether the function reads whole tensors rather than one element
    is_whole: ClassVar[bool] = False
    state_names: ClassVar[tuple[str, ...]] = ()  # names of the states of a parameter, in order
    number_names: ClassVar[tuple[str, ...]] = ()  # fields passed to `update`

    def __post_init__(self) -> None:
        self._prepare(**self.hyper_numbers())

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The update op for this number of states."""
        return f"{'whole' if self.is_whole else 'pointwise'}{len(self.states())}"

    def update(self, x: Tensor, grad: Tensor, *state: Tensor, **numbers: Any) -> Any:
        """Returns the new x and the new states."""
        raise NotImplementedError

    def states(self) -> Mapping[str, StateShape]:
        """Returns the names of the states of a parameter, in order, with their shapes."""
        return dict.fromkeys(self.state_names)

    def hyper_numbers(self) -> Mapping[str, Hyper]:
        """Returns the arguments of `update` besides `lr` and `step`."""
        return {name: getattr(self, name) for name in self.number_names}

    def numbers(self) -> dict[str, float]:
        """Returns an empty dict: the values are in the program, or vary with the step."""
        return {}

    def numbers_at(self, step: int) -> list[float]:
        """Returns the values of a step for those fields that are functions."""
        self.at(step)  # validates them
        return [float(each(step)) for each in self.hyper_numbers().values() if callable(each)]

    def num_numbers_at(self) -> int:
        return sum(map(callable, self.hyper_numbers().values()))

    def said_numbers(self) -> dict[str, Any]:
        return {
            name: each if is_number(each) else "a function of the step"
            for name, each in self.hyper_numbers().items()
        }

    def description(self) -> dict[str, Any]:
        return {**super().description(), "kind": self.name.lower()}

    def programs(self, dtypes: set[str], shapes: set[str]) -> tuple[dict[str, str], list[str]]:
        from medley.capture.update import Update, capture_update

        if len(dtypes) > 1:
            raise ValueError(f"{self.name}: found parameters of f32 and f64, expected a group each")
        update = Update(
            self.name,
            self.update,
            self.hyper_numbers(),
            len(self.states()),
            min(dtypes, default="f32"),
        )
        if not self.is_whole:
            return {"": capture_update(update)}, list(self.states())
        programs = {}
        for text in sorted(shapes):
            shape = tuple(sizes_of(text))
            forms = [shape if of is None else tuple(of(shape)) for of in self.states().values()]
            programs[text] = capture_update(update, [shape, *forms])
        return programs, list(self.states())


# --- your own ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pointwise(Written):
    """Your own optimizer, made by `pointwise`."""

    function: Callable[..., Any]
    state: Mapping[str, StateShape] = dataclasses.field(default_factory=dict)
    hyper: Mapping[str, Hyper] = dataclasses.field(default_factory=dict)

    other_fields: ClassVar[frozenset[str]] = Optimizer.other_fields | {"function", "state"}
    most_states: ClassVar[int] = 4

    def __post_init__(self) -> None:
        self._prepare()
        if len(self.state) > self.most_states:
            self._refuse("state", f"{len(self.state)} names", f"at most {self.most_states}")
        for name in self.state:
            if not name.isidentifier() or name in ("master", "average"):
                self._refuse("state", repr(name), 'names such as "exp_avg"')

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    def update(self, x: Tensor, grad: Tensor, *state: Tensor, **numbers: Any) -> Any:
        return self.function(x, grad, *state, **numbers)

    def states(self) -> Mapping[str, StateShape]:
        return self.state

    def hyper_numbers(self) -> Mapping[str, Hyper]:
        return self.hyper

    def description(self) -> dict[str, Any]:
        name = getattr(self.function, "__name__", "function")
        return {**super().description(), "kind": self.kind, "function": name}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whole(Pointwise):
    """Your own optimizer on whole tensors, made by `whole`."""

    is_whole: ClassVar[bool] = True
    most_states: ClassVar[int] = 6


def pointwise(
    function: Callable[..., Any],
    *,
    state: Sequence[str] = (),
    hyper: Mapping[str, Hyper] | None = None,
    **options: Any,
) -> Optimizer:
    """Returns your own optimizer, on any shards, from a function of one element.

    `function(x, grad, *state, lr=, step=, **hyper)` returns the new x and the new states, each of
    the shape of `x`. Each element of the result depends on that element alone. The function is
    captured once, as a model is. `lr`, `step`, counted from 1, and each function of the step in
    `hyper` are 0-dim tensors. `options` are those of every optimizer: lr, max_norm.

        def rmsprop(x, grad, square, *, lr, step, alpha):
            square = alpha * square + (1 - alpha) * grad * grad
            return x - lr * grad / (square.sqrt() + 1e-8), square

        medley.optimizer.pointwise(rmsprop, state=["square"], hyper={"alpha": 0.99}, lr=1e-2)
    """
    return Pointwise(
        function=function, state=_states("pointwise", state), hyper=dict(hyper or {}), **options
    )


def whole(
    function: Callable[..., Any],
    *,
    state: Sequence[str] | Mapping[str, StateShape] = (),
    hyper: Mapping[str, Hyper] | None = None,
    **options: Any,
) -> Optimizer:
    """Returns your own optimizer from a function of whole tensors, on any shards.

    Equals `pointwise`, but `x`, `grad` and the states are whole, in the shape of the model's
    parameter. The function may use norms, matmuls and `torch.linalg`. Every device with a part of a
    parameter computes its whole step. `state` may map a name to a function from the parameter's
    shape to the state's shape. States start from zeros.

        def lars(x, grad, *, lr, step, trust):
            return x - lr * trust * x.norm() / (grad.norm() + 1e-8) * grad

        medley.optimizer.whole(lars, hyper={"trust": 1e-3}, lr=0.1)
    """
    return Whole(
        function=function, state=_states("whole", state), hyper=dict(hyper or {}), **options
    )


def _states(name: str, state: Sequence[str] | Mapping[str, StateShape]) -> Mapping[str, StateShape]:
    given = list(state)
    twice = [each for each in given if given.count(each) > 1]
    if twice:
        raise ValueError(f"{name}: state: found {twice[0]!r} twice, expected each name once")
    return dict(state) if isinstance(state, Mapping) else dict.fromkeys(given)


# --- those of PyTorch ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSprop(Written):
    """Equals torch.optim.RMSprop."""

    lr: Hyper = 1e-2
    alpha: Hyper = 0.99  # share that the average of squares retains
    eps: Hyper = 1e-8  # added to the root of the average
    weight_decay: Hyper = 0.0  # added to the gradient
    momentum: Hyper = 0.0  # 0: no state
    centered: bool = False  # divides by the standard deviation

    number_names: ClassVar[tuple[str, ...]] = ("alpha", "eps", "weight_decay", "momentum")

    def states(self) -> Mapping[str, StateShape]:
        momentum = ["momentum_buffer"] if callable(self.momentum) or self.momentum else []
        return dict.fromkeys(["square_avg", *momentum, *(["grad_avg"] if self.centered else [])])

    def update(self, x: Tensor, grad: Tensor, *state: Tensor, **numbers: Any) -> Any:
        kept = dict(zip(self.states(), state, strict=True))
        alpha = numbers["alpha"]
        grad = _decayed(x, grad, numbers)
        kept["square_avg"] = alpha * kept["square_avg"] + (1 - alpha) * grad * grad
        divisor = kept["square_avg"]
        if self.centered:
            kept["grad_avg"] = kept["grad_avg"] + (1 - alpha) * (grad - kept["grad_avg"])
            divisor = divisor - kept["grad_avg"] * kept["grad_avg"]
        step = grad / (divisor.sqrt() + numbers["eps"])
        if "momentum_buffer" in kept:
            step = kept["momentum_buffer"] = numbers["momentum"] * kept["momentum_buffer"] + step
        return x - numbers["lr"] * step, *kept.values()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(Written):
    """Equals torch.optim.Adagrad."""

    lr: Hyper = 1e-2
    lr_decay: Hyper = 0.0  # the rate is divided by 1 + lr_decay * steps done
    weight_decay: Hyper = 0.0  # added to the gradient
    initial_accumulator_value: float = 0.0  # initial sum of squares
    eps: Hyper = 1e-10  # added to the root of the sum

    state_names: ClassVar[tuple[str, ...]] = ("sum",)
    number_names: ClassVar[tuple[str, ...]] = (
        "lr_decay",
        "weight_decay",
        "initial_accumulator_value",
        "eps",
    )

    def update(self, x: Tensor, grad: Tensor, *state: Tensor, **numbers: Any) -> Any:
        (total,) = state
        grad = _decayed(x, grad, numbers)
        made = numbers["step"] - 1
        first = (made == 0) * numbers["initial_accumulator_value"]
        total = total + first + grad * grad
        rate = numbers["lr"] / (1 + made * numbers["lr_decay"])
        return x - rate * grad / (total.sqrt() + numbers["eps"]), total


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adadelta(Written):
    """Equals torch.optim.Adadelta."""

    lr: Hyper = 1.0
    rho: Hyper = 0.9  # share that the averages of squares retain
    eps: Hyper = 1e-6  # added to the averages
    weight_decay: Hyper = 0.0  # added to the gradient

    state_names: ClassVar[tuple[str, ...]] = ("square_avg", "acc_delta")
    number_names: ClassVar[tuple[str, ...]] = ("rho", "eps", "weight_decay")

    def update(self, x: Tensor, grad: Tensor, *state: Tensor, **numbers: Any) -> Any:
        square, moved = state
        rho, eps = numbers["rho"], numbers["eps"]
        grad = _decayed(x, grad, numbers)
        square = rho * square + (1 - rho) * grad * grad
        step = (moved + eps).sqrt() / (square + eps).sqrt() * grad
        return x - numbers["lr"] * step, square, rho * moved + (1 - rho) * step * step


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OfMoments(Written):
    """Optimizers with betas. Their first two states are averages."""

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    betas: Betas = (0.9, 0.999)  # each in [0, 1)
    eps: Hyper = 1e-8
    weight_decay: Hyper = 0.0  # added to the gradient

    def __post_init__(self) -> None:
        self._prepare(eps=self.eps, weight_decay=self.weight_decay)

    def hyper_numbers(self) -> Mapping[str, Hyper]:
        betas = self.betas
        pair: Sequence[Hyper] = (
            (lambda step: betas(step)[0], lambda step: betas(step)[1]) if callable(betas) else betas
        )
        named = {"beta1": pair[0], "beta2": pair[1]}
        return {**named, "eps": self.eps, "weight_decay": self.weight_decay}


def _moments(x: Tensor, grad: Tensor, state: Sequence[Tensor], numbers: Any) -> list[Tensor]:
    """Returns the gradient and its averages."""
    grad = _decayed(x, grad, numbers)
    average = state[0] + (1 - numbers["beta1"]) * (grad - state[0])
    square = numbers["beta2"] * state[1] + (1 - numbers["beta2"]) * grad * grad
    return [grad, average, square]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adamax(_OfMoments):
    """Equals torch.optim.Adamax: Adam with the largest gradients."""

    lr: Hyper = 2e-3
    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_inf")

    def update(self, x: Tensor, grad: Tensor, *state: Tensor, **numbers: Any) -> Any:
        grad, average, _ = _moments(x, grad, state, numbers)
        largest = (numbers["beta2"] * state[1]).maximum(grad.abs() + numbers["eps"])
        rate = numbers["lr"] / (1 - numbers["beta1"] ** numbers["step"])
        return x - rate * average / largest, average, largest


@dataclasses.dataclass(frozen=True, kw_only=True)
class NAdam(_OfMoments):
    """Equals torch.optim.NAdam: Adam with Nesterov momentum."""

    lr: Hyper = 2e-3
    momentum_decay: Hyper = 4e-3  # larger values let the momentum grow sooner
    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq", "mu_product")

    def hyper_numbers(self) -> Mapping[str, Hyper]:
        return {**super().hyper_numbers(), "momentum_decay": self.momentum_decay}

    def update(self, x: Tensor, grad: Tensor, *state: Tensor, **numbers: Any) -> Any:
        import torch

        grad, average, square = _moments(x, grad, state, numbers)
        step, decay = numbers["step"], numbers["momentum_decay"]
        mu = numbers["beta1"] * (1 - 0.5 * 0.96 ** (step * decay))
        mu_next = numbers["beta1"] * (1 - 0.5 * 0.96 ** ((step + 1) * decay))
        product = torch.where(step == 1, torch.ones_like(x), state[2]) * mu
        divisor = (square / (1 - numbers["beta2"] ** step)).sqrt() + numbers["eps"]
        x = x - numbers["lr"] * (1 - mu) / (1 - product) * grad / divisor
        x = x - numbers["lr"] * mu_next / (1 - product * mu_next) * average / divisor
        return x, average, square, product


@dataclasses.dataclass(frozen=True, kw_only=True)
class RAdam(_OfMoments):
    """Equals torch.optim.RAdam: Adam, rectified in its first steps."""

    def update(self, x: Tensor, grad: Tensor, *state: Tensor, **numbers: Any) -> Any:
        import torch

        grad, average, square = _moments(x, grad, state, numbers)
        step, beta2 = numbers["step"], numbers["beta2"]
        correction = 1 - beta2**step
        most = 2 / (1 - beta2) - 1
        length = most - 2 * step * beta2**step / correction
        ratio = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        rectified = ratio.clamp(min=0).sqrt() * correction.sqrt() / (square.sqrt() + numbers["eps"])
        direction = average / (1 - numbers["beta1"] ** step)
        return (
            x - numbers["lr"] * direction * torch.where(length > 5, rectified, torch.ones_like(x)),
            average,
            square,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rprop(Written):
    """Equals torch.optim.Rprop: uses only the sign of the gradient."""

    lr: Hyper = 1e-2  # initial step of every element
    etas: tuple[float, float] = (0.5, 1.2)  # factors by which a step shrinks and grows
    step_sizes: tuple[float, float] = (1e-6, 50.0)  # minimum and maximum step
    state_names: ClassVar[tuple[str, ...]] = ("prev", "step_size")

    def __post_init__(self) -> None:
        self._prepare()
        for field in ("etas", "step_sizes"):
            pair = getattr(self, field)
            if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and 0 < pair[0] <= pair[1]):
                self._refuse(field, pair, "two numbers > 0, the lower one first")

    def hyper_numbers(self) -> Mapping[str, Hyper]:
        (shrink, grow), (least, most) = self.etas, self.step_sizes
        return {"shrink": shrink, "grow": grow, "least": least, "most": most}

    def update(self, x: Tensor, grad: Tensor, *state: Tensor, **numbers: Any) -> Any:
        import torch

        before = torch.where(numbers["step"] == 1, numbers["lr"] + torch.zeros_like(x), state[1])
        turned = grad * state[0]
        one = torch.ones_like(x)
        factor = torch.where(turned > 0, numbers["grow"] * one, one)
        factor = torch.where(turned < 0, numbers["shrink"] * one, factor)
        size = (before * factor).clamp(numbers["least"], numbers["most"])
        grad = torch.where(turned < 0, torch.zeros_like(grad), grad)
        return x - grad.sign() * size, grad, size


def _decayed(x: Tensor, grad: Tensor, numbers: Mapping[str, Any]) -> Tensor:
    """Returns the gradient with the weight decay, which is a number or a tensor."""
    decay = numbers["weight_decay"]
    return grad if isinstance(decay, float) and decay == 0 else grad + decay * x
