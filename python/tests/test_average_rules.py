"""Averages of weights by any rule of the step: those of common libraries, with the updates of their
documentation and sources."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import by_step
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import medley


class Rule:
    """An average with the state of a library. `share` is the retained share, None for nothing."""

    def __init__(self, model: nn.Module) -> None:
        self.kept = [p.detach().clone() for p in model.parameters()]
        self.calls = 0

    def decay(self) -> float | None:
        """Returns the share retained now; None: all."""
        raise NotImplementedError

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Runs after each step."""
        decay = self.decay()
        if decay is not None:
            for kept, p in zip(self.kept, model.parameters(), strict=True):
                kept.sub_((1 - decay) * (kept - p))


class EmaPytorch(Rule):
    """ema_pytorch's EMA(beta=0.98, update_after_step=6, update_every=3)."""

    def decay(self) -> float | None:
        """Returns the share retained now."""
        step = self.calls
        self.calls += 1
        if step == 0:
            return 0.0
        if step % 3:
            return None
        if step <= 6:
            return 0.0
        epoch = max(self.calls - 6 - 1, 0)
        return min(max(1 - (1 + epoch / 1.0) ** -(2 / 3), 0.0), 0.98) if epoch > 0 else 0.0


class Diffusers(Rule):
    """diffusers' EMAModel(decay=0.95, update_after_step=4, use_ema_warmup=warmup, power=0.75)."""

    warmup = True

    def decay(self) -> float | None:
        """Returns the share retained now."""
        self.calls += 1
        step = max(0, self.calls - 4 - 1)
        if step <= 0:
            return 0.0
        value = 1 - (1 + step / 1.0) ** -0.75 if self.warmup else (1 + step) / (10 + step)
        return max(min(value, 0.95), 0.0)


class DiffusersCounting(Diffusers):
    """The same without the warm-up of its own."""

    warmup = False


class Timm(Rule):
    """timm's ModelEmaV3(decay=0.95, min_decay=0.1, update_after_step=3, use_warmup=True)."""

    def decay(self) -> float | None:
        """Returns the share retained now. The first update has the number 1."""
        self.calls += 1
        step = max(0, self.calls - 3 - 1)
        return max(min(1 - (1 + step / 1.0) ** -(2 / 3), 0.95), 0.1) if step > 0 else 0.0


class Dino(Rule):
    """DINO's teacher: a cosine from 0.9 to 1 over all steps, from the student's first weights."""

    def decay(self) -> float | None:
        """Returns the share retained now."""
        at, self.calls = self.calls, self.calls + 1
        return 1 + 0.5 * (0.9 - 1) * (1 + math.cos(math.pi * at / by_step.STEPS))


def ema_pytorch(step: int) -> float:
    """The share of EmaPytorch, as a function of the step."""
    if step % 3:
        return 1.0
    return 0.0 if step <= 6 else min(1 - (1 + step - 6) ** -(2 / 3), 0.98)


def diffusers(step: int) -> float:
    """Returns the share of Diffusers."""
    return 0.0 if step <= 4 else min(1 - (1 + step - 4) ** -0.75, 0.95)


def diffusers_counting(step: int) -> float:
    """Returns the share of DiffusersCounting."""
    return 0.0 if step <= 4 else min((1 + step - 4) / (10 + step - 4), 0.95)


def timm(step: int) -> float:
    """Returns the share of Timm."""
    return 0.0 if step <= 3 else max(min(1 - (1 + step - 3) ** -(2 / 3), 0.95), 0.1)


def dino(step: int) -> float:
    """Returns the share of Dino."""
    return 1 - 0.05 * (1 + math.cos(math.pi * step / by_step.STEPS))


class Swa:
    """swa_utils' equal average, from step 10, every 4 steps."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.calls = AveragedModel(model), 0

    def update(self, model: nn.Module) -> None:
        """Runs after each step."""
        if self.calls >= 10 and (self.calls - 10) % 4 == 0:
            self.model.update_parameters(model)
        self.calls += 1

    @property
    def kept(self) -> list[Tensor]:
        """The averages."""
        return list(self.model.parameters())


class Ema(Swa):
    """swa_utils' exponential average of every fourth step, from step 10."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def swa(step: int) -> float:
    """The share of Swa."""
    if step < 10 or (step - 10) % 4:
        return 1.0
    made = (step - 10) // 4
    return made / (made + 1)


def ema(step: int) -> float:
    """Returns the share of Ema."""
    if step < 10 or (step - 10) % 4:
        return 1.0
    return 0.0 if step == 10 else 0.9


RULES: dict[str, tuple[Callable[[int], float], Any]] = {
    "ema_pytorch": (ema_pytorch, EmaPytorch),
    "diffusers": (diffusers, Diffusers),
    "diffusers, counting": (diffusers_counting, DiffusersCounting),
    "timm": (timm, Timm),
    "dino": (dino, Dino),
    "swa": (swa, Swa),
    "ema of swa_utils": (ema, Ema),
}


def check(name: str, kinds: tuple[str, ...], tmp_path: Any = None) -> None:
    """Asserts that averages equal those of a library, under plans of these kinds."""
    share, rule = RULES[name]
    with by_step.exactness.double_precision():
        model, batch, graph = by_step.made()
        theirs = rule(copy.deepcopy(model))
        by_step.train_torch(
            model,
            batch,
            lambda m: torch.optim.AdamW(m.parameters(), 1e-2),
            each=lambda m, step: theirs.update(m),
        )
        names = [each for each, _ in model.named_parameters()]
        want = {n: p.detach() for n, p in zip(names, theirs.kept, strict=True)}
        ours = medley.AdamW(lr=1e-2, average=share)
        for kind in kinds:
            trainer = by_step.trainer_of(model, graph, ours, kind)
            for step in range(by_step.STEPS):
                if tmp_path is not None and step == 20:
                    trainer.save(tmp_path)
                    trainer = by_step.trainer_of(model, graph, ours, "owners")
                    trainer.load(tmp_path)
                trainer.step(batch)
            print(f"{name}, {kind}: {by_step.compare(trainer.averages(), want):.1e}")


@pytest.mark.parametrize("name", ["ema_pytorch", "dino"])
def test_averages_have_any_rule_of_the_step(name: str, tmp_path: Any) -> None:
    check(name, ("zero",), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_averages_have_any_rule_of_the_step_under_any_plan(name: str) -> None:
    check(name, by_step.KINDS)


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"SGD: average: found 2 in step 1, expected a number in"):
        medley.SGD(average=lambda step: 1 + step).scalars(1)
    with pytest.raises(ValueError, match="Groups: average: found that of a group"):
        medley.Groups(groups=[("*", medley.SGD(average=0.9))])
