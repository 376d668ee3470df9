"""Models with several losses over one state, and their usual training loops."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import medley
import medley.optimizer

ROWS = 6


@dataclasses.dataclass(frozen=True)
class Loss:
    """A method of a model, the parameters that it trains, and their optimizer."""

    method: str
    train: str | tuple[str, ...]
    torch_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    optimizer: medley.optimizer.Optimizer
    after: Callable[[nn.Module], None] = lambda model: None  # runs after a step of PyTorch's loop


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, the tensors of a batch for each method, and the order of the steps."""

    make: Callable[[], nn.Module]
    batch: Callable[[], Any]
    losses: Mapping[str, Loss]
    order: tuple[str, ...]
    loop: Callable[[], nn.Module] | None = None  # the model of PyTorch's loop, if it is another


def adam(lr: float, **options: Any) -> tuple[Any, Any]:
    """Returns PyTorch's optimizer and ours."""
    return (
        lambda parameters: torch.optim.Adam(parameters, lr=lr, **options),
        medley.Adam(lr=lr, **options),
    )


class LinearGan(nn.Module):
    """A generator and a discriminator of one layer each."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = nn.Linear(3, 4), nn.Linear(4, 2)

    def discriminator_loss(self, noise: Tensor, real: Tensor) -> Tensor:
        """Real rows are 1, generated ones 0."""
        fake = self.generator(noise).detach()
        return self.judged(real, 1.0) + self.judged(fake, 0.0)

    def generator_loss(self, noise: Tensor, real: Tensor) -> Tensor:
        """Generated rows pass as real ones."""
        return self.judged(self.generator(noise), 1.0)

    def judged(self, x: Tensor, label: float) -> Tensor:
        """Returns the loss of rows that have a label."""
        score = self.discriminator(x).flatten(1).mean(1)
        return functional.binary_cross_entropy_with_logits(score, torch.full_like(score, label))


class ConvGan(LinearGan):
    """DCGAN in small: transposed convolutions and convolutions, batch norms in both."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(3, 4, 2, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 2, 4, 2, 1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4, 2, 4),
        )


def noise_and_rows() -> Any:
    """Returns a batch of the linear GAN."""
    return {"noise": torch.randn(ROWS, 3), "real": torch.randn(ROWS, 4)}


def noise_and_pictures() -> Any:
    """Returns a batch of the convolutional GAN."""
    return {"noise": torch.randn(ROWS, 3, 1, 1), "real": torch.randn(ROWS, 2, 4, 4)}


def gan_losses(lr: float = 1e-2) -> dict[str, Loss]:
    """Returns the losses of both GANs."""
    betas = {"betas": (0.5, 0.999)}
    return {
        "d": Loss("discriminator_loss", "discriminator.*", *adam(lr, **betas)),
        "g": Loss("generator_loss", "generator.*", *adam(lr / 2, **betas)),
    }


class Wasserstein(LinearGan):
    """WGAN: a critic without a sigmoid, whose weights are clipped after each step."""

    def judged(self, x: Tensor, label: float) -> Tensor:
        """Returns the score of rows, which is to rise with the label."""
        return (1 - 2 * label) * torch.tanh(self.discriminator(x)).mean()


def clipped_rmsprop(
    x: Tensor, grad: Tensor, square: Tensor, *, lr: Tensor, step: Tensor, bound: float
) -> tuple[Tensor, Tensor]:
    """RMSprop that clips the weights after its step."""
    square = 0.99 * square + 0.01 * grad * grad
    return (x - lr * grad / (square.sqrt() + 1e-8)).clamp(-bound, bound), square


def clip_critic(model: nn.Module) -> None:
    """Clips the critic's weights after its step, as in WGAN."""
    with torch.no_grad():
        for parameter in model.discriminator.parameters():  # type: ignore[union-attr]
            parameter.clamp_(-0.3, 0.3)


def wasserstein_losses() -> dict[str, Loss]:
    """Returns the losses of WGAN."""

    def rmsprop(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(parameters, lr=1e-2)

    def ours(bound: float) -> medley.optimizer.Optimizer:
        return medley.optimizer.pointwise(
            clipped_rmsprop, state=["square"], hyper={"bound": bound}, lr=1e-2
        )

    return {
        "d": Loss("discriminator_loss", "discriminator.*", rmsprop, ours(0.3), clip_critic),
        "g": Loss("generator_loss", "generator.*", rmsprop, ours(1e9)),
    }


class TwoHeads(nn.Module):
    """An encoder that two losses train, each with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh())
        self.one, self.two = nn.Linear(6, 2), nn.Linear(6, 4)

    def classify(self, x: Tensor, y: Tensor) -> Tensor:
        """Trains encoder and first head."""
        return functional.cross_entropy(self.one(self.encoder(x)), y)

    def restore(self, x: Tensor, y: Tensor) -> Tensor:
        """Trains encoder and second head."""
        return functional.mse_loss(self.two(self.encoder(x)), x)


def rows_and_classes() -> Any:
    """Returns a batch of a classifier."""
    return {"x": torch.randn(ROWS, 4), "y": torch.randint(0, 2, (ROWS,))}


def sgd(lr: float) -> tuple[Any, Any]:
    """Returns PyTorch's optimizer and ours."""
    return (
        lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
        medley.SGD(lr=lr, momentum=0.9),
    )


class Distilled(nn.Module):
    """A trained teacher, and a student of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.student = nn.Linear(4, 2)

    def teach(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of the teacher, from classes."""
        return functional.cross_entropy(self.teacher(x), y)

    def learn(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of the student, from classes and from the teacher."""
        said, soft = self.student(x), self.teacher(x).softmax(1).detach()
        return functional.cross_entropy(said, y) + functional.cross_entropy(said, soft)


def as_buffers(module: nn.Module) -> nn.Module:
    """Returns a copy of a module whose parameters are buffers, for forward to change."""
    module = copy.deepcopy(module)
    for each in module.modules():
        for name, parameter in list(each.named_parameters(recurse=False)):
            del each._parameters[name]
            each.register_buffer(name, parameter.detach().clone())
    return module


def follow(slow: nn.Module, fast: nn.Module, share: float) -> None:
    """Moves the weights of one module towards those of another."""
    with torch.no_grad():
        weights = {n: t for n, t in slow.state_dict(keep_vars=True).items()}
        for name, parameter in fast.named_parameters():
            weights[name].mul_(share).add_(parameter, alpha=1 - share)


class Dino(nn.Module):
    """A student, a teacher that follows it, and a centre of the teacher's outputs."""

    def __init__(self, teacher_of: Callable[[nn.Module], nn.Module] = as_buffers) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
        self.teacher = teacher_of(self.student)
        self.register_buffer("center", torch.zeros(1, 4))

    def student_loss(self, one: Tensor, two: Tensor) -> Tensor:
        """Returns the loss over both views: the student predicts the teacher's output for the other
        view."""
        follow(self.teacher, self.student, 0.9)
        return self.loss(one, two)

    def loss(self, one: Tensor, two: Tensor) -> Tensor:
        """The same of a teacher as it is."""
        with torch.no_grad():
            said = [self.teacher(x) for x in (one, two)]
            soft = [((each - self.center) / 0.4).softmax(1) for each in said]
        first, second = (functional.log_softmax(self.student(x), 1) for x in (one, two))
        loss = -(soft[0] * second).sum(1).mean() - (soft[1] * first).sum(1).mean()
        with torch.no_grad():
            mean = torch.cat(said).mean(0, keepdim=True)
            self.center.mul_(0.9).add_(mean, alpha=0.1)
        return loss


class DinoLoop(Dino):
    """DINO as in its loop: the teacher has parameters, and follows after each step."""

    def __init__(self) -> None:
        super().__init__(lambda module: copy.deepcopy(module).requires_grad_(False))

    def student_loss(self, one: Tensor, two: Tensor) -> Tensor:
        """Returns the loss. `follow` runs after the step."""
        return self.loss(one, two)


class Moco(nn.Module):
    """A query encoder, a key encoder that follows it, and a queue of keys."""

    def __init__(self, key_of: Callable[[nn.Module], nn.Module] = as_buffers) -> None:
        super().__init__()
        self.query = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        self.key = key_of(self.query)
        self.register_buffer("queue", functional.normalize(torch.randn(2 * ROWS, 3), dim=1))
        self.register_buffer("next", torch.zeros(1, dtype=torch.long))

    def contrast(self, one: Tensor, two: Tensor) -> Tensor:
        """Returns the loss that separates the key of a row from those of the queue, which it then
        enters."""
        follow(self.key, self.query, 0.9)
        return self.loss(one, two)

    def loss(self, one: Tensor, two: Tensor) -> Tensor:
        """The same of a key encoder as it is."""
        query = functional.normalize(self.query(one), dim=1)
        with torch.no_grad():
            keys = functional.normalize(self.key(two), dim=1)
        queue = self.queue.clone()
        logits = torch.cat([(query * keys).sum(1, keepdim=True), query @ queue.mT], 1) / 0.2
        labels = torch.zeros(one.shape[0], dtype=torch.long)
        with torch.no_grad():
            places = (self.next + torch.arange(one.shape[0])) % queue.shape[0]
            self.queue.index_copy_(0, places, keys)
            self.next.add_(one.shape[0]).remainder_(queue.shape[0])
        return functional.cross_entropy(logits, labels)


class MocoLoop(Moco):
    """MoCo as its loop has it: the key encoder has parameters."""

    def __init__(self) -> None:
        super().__init__(lambda module: copy.deepcopy(module).requires_grad_(False))

    def contrast(self, one: Tensor, two: Tensor) -> Tensor:
        """Returns the loss. The key encoder follows after the step."""
        return self.loss(one, two)


def two_views() -> Any:
    """Returns two views of the same rows."""
    x = torch.randn(ROWS, 4)
    return {"one": x + 0.1 * torch.randn_like(x), "two": x + 0.1 * torch.randn_like(x)}


def follows(slow: str, fast: str) -> Callable[[nn.Module], None]:
    """Returns a function that moves one module of a model towards another."""
    return lambda model: follow(model.get_submodule(slow), model.get_submodule(fast), 0.9)


CASES = {
    "linear gan": Case(LinearGan, noise_and_rows, gan_losses(), ("d", "g")),
    "dcgan": Case(ConvGan, noise_and_pictures, gan_losses(), ("d", "g")),
    "wgan": Case(Wasserstein, noise_and_rows, wasserstein_losses(), ("d", "d", "g")),
    "two heads": Case(
        TwoHeads,
        rows_and_classes,
        {
            "classify": Loss("classify", ("encoder.*", "one.*"), *adam(1e-2)),
            "restore": Loss("restore", ("encoder.*", "two.*"), *sgd(1e-2)),
        },
        ("classify", "restore", "restore"),
    ),
    "distillation": Case(
        Distilled,
        rows_and_classes,
        {
            "teacher": Loss("teach", "teacher.*", *adam(1e-2)),
            "student": Loss("learn", "student.*", *sgd(1e-2)),
        },
        ("teacher", "teacher", "student"),
    ),
    "dino": Case(
        Dino,
        two_views,
        {"student": Loss("student_loss", "student.*", *adam(1e-2), follows("teacher", "student"))},
        ("student",),
        DinoLoop,
    ),
    "moco": Case(
        Moco,
        two_views,
        {"query": Loss("contrast", "query.*", *sgd(1e-2), follows("key", "query"))},
        ("query",),
        MocoLoop,
    ),
}
