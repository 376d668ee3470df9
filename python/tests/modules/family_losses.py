"""Losses of torch.nn and common custom losses, in the forms that a model may return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from module_case import Case, classes, net, x
from torch import Tensor, nn


def linear() -> nn.Module:
    return nn.Linear(6, 5)


def regression(loss: Callable[[Tensor, Tensor], Any], **known: Any) -> Case:
    """Returns the case of a loss of a linear layer's output and a target like it."""
    return net(lambda m, x, y: loss(m.a(x), y), lambda: (x(6), torch.rand(7, 5)), a=linear, **known)


def classification(loss: Callable[[Tensor, Tensor], Any], **known: Any) -> Case:
    """Returns the case of a loss of 5 logits and a class."""
    return net(lambda m, x, y: loss(m.a(x), y), lambda: (x(6), classes(5)), a=linear, **known)


def signs(loss: Callable[[Tensor, Tensor], Any], **known: Any) -> Case:
    """Returns the case of a loss of an output and targets of -1 and 1."""
    return net(
        lambda m, x, y: loss(m.a(x), 2.0 * y - 1.0),
        lambda: (x(6), classes(2, 5)),
        a=linear,
        **known,
    )


def pairs(loss: Callable[[Any, Tensor, Tensor], Tensor], **known: Any) -> Case:
    """Returns the case of a loss of two inputs seen by one layer."""
    return net(lambda m, x, y: loss(m, m.a(x), m.a(y)), lambda: (x(6), x(6)), a=linear, **known)


def ignoring(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.where(y == 2, -100, y))


def weighted(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, weight=torch.linspace(0.5, 1.5, 5))


def focal(logits: Tensor, y: Tensor) -> Tensor:
    p = logits.softmax(-1).gather(1, y[:, None]).squeeze(1)
    return (-((1 - p) ** 2) * p.log()).mean()


def dice(h: Tensor, y: Tensor) -> Tensor:
    p = h.sigmoid()
    return (1 - 2 * (p * y).sum(-1) / (p + y).sum(-1)).mean()


def contrastive(m: Any, a: Tensor, b: Tensor) -> Tensor:
    logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t() / 0.1
    return F.cross_entropy(logits, torch.arange(a.shape[0]))


def barlow(m: Any, a: Tensor, b: Tensor) -> Tensor:
    c = (a - a.mean(0)).t() @ (b - b.mean(0)) / a.shape[0]
    return ((c - torch.eye(5)) ** 2).sum()


def penalty(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(m.a(x), y) + 0.01 * sum(p.pow(2).sum() for p in m.parameters())


def by_weights(h: Tensor, y: Tensor) -> Tensor:
    w = y.sum(-1)
    return ((h - y).pow(2).mean(-1) * w).sum() / w.sum()


def mixture(h: Tensor, y: Tensor) -> Tensor:
    """A mixture density: two Gaussians weighted by logits."""
    means, weights = h[:, :2], h[:, 2:4].log_softmax(-1)
    return -(weights - 0.5 * (y[:, :1] - means) ** 2).logsumexp(-1).mean()


def several(m: Any, x: Tensor, y: Tensor) -> Tensor:
    h = m.a(x)
    return F.mse_loss(h, y) + 0.1 * h.abs().mean() + 0.01 * h.logsumexp(-1).pow(2).mean()


class Output:
    """The output class of transformers' models."""

    def __init__(self, loss: Tensor, logits: Tensor) -> None:
        self.loss = loss
        self.logits = logits


CASES: dict[str, Case] = {
    "cross_entropy": classification(F.cross_entropy),
    "cross_entropy_module": classification(nn.CrossEntropyLoss(reduction="mean")),
    "cross_entropy_sum": classification(lambda h, y: F.cross_entropy(h, y, reduction="sum")),
    "cross_entropy_by_row": classification(
        lambda h, y: F.cross_entropy(h, y, reduction="none").mean()
    ),
    "cross_entropy_smoothed": classification(
        lambda h, y: F.cross_entropy(h, y, label_smoothing=0.1)
    ),
    "cross_entropy_weighted": classification(weighted),
    "cross_entropy_ignoring": classification(ignoring),
    "cross_entropy_of_probabilities": regression(lambda h, y: F.cross_entropy(h, y.softmax(-1))),
    "cross_entropy_of_positions": net(
        lambda m, x, y: F.cross_entropy(m.a(x).transpose(1, 2), y),
        lambda: (x(3, 6), classes(5, 3)),
        a=linear,
    ),
    "cross_entropy_of_images": net(
        lambda m, x, y: F.cross_entropy(m.a(x), y),
        lambda: (x(3, 4, 4), classes(5, 4, 4)),
        a=lambda: nn.Conv2d(3, 5, 1),
    ),
    "nll": classification(lambda h, y: F.nll_loss(h.log_softmax(-1), y)),
    "nll_sum": classification(lambda h, y: F.nll_loss(h.log_softmax(-1), y, reduction="sum")),
    "mse": regression(F.mse_loss),
    "mse_sum": regression(lambda h, y: F.mse_loss(h, y, reduction="sum")),
    "mse_by_element": regression(lambda h, y: F.mse_loss(h, y, reduction="none").mean()),
    "mse_of_a_broadcast": regression(lambda h, y: F.mse_loss(h, y[:, :1].expand_as(h))),
    "l1": regression(F.l1_loss),
    "smooth_l1": regression(lambda h, y: F.smooth_l1_loss(h, y, beta=0.5)),
    "huber": regression(lambda h, y: F.huber_loss(h, y, delta=0.5)),
    "bce": regression(lambda h, y: F.binary_cross_entropy(h.sigmoid(), y)),
    "bce_of_logits": regression(F.binary_cross_entropy_with_logits),
    "bce_with_positive_weight": regression(
        lambda h, y: F.binary_cross_entropy_with_logits(h, y, pos_weight=torch.linspace(1, 2, 5))
    ),
    "kl": regression(
        lambda h, y: F.kl_div(h.log_softmax(-1), y.softmax(-1), reduction="batchmean")
    ),
    "kl_mean": regression(lambda h, y: F.kl_div(h.log_softmax(-1), y.softmax(-1))),
    "kl_of_logs": regression(
        lambda h, y: F.kl_div(
            h.log_softmax(-1), y.log_softmax(-1), log_target=True, reduction="sum"
        )
    ),
    "poisson_nll": regression(lambda h, y: F.poisson_nll_loss(h, y)),
    "gaussian_nll": regression(lambda h, y: F.gaussian_nll_loss(h, y, h.exp())),
    "hinge_embedding": signs(F.hinge_embedding_loss),
    "soft_margin": signs(F.soft_margin_loss),
    "multi_margin": classification(F.multi_margin_loss),
    "multilabel_soft_margin": regression(lambda h, y: F.multilabel_soft_margin_loss(h, y.round())),
    "margin_ranking": pairs(lambda m, a, b: F.margin_ranking_loss(a, b, torch.ones_like(a))),
    "cosine_embedding": pairs(
        lambda m, a, b: F.cosine_embedding_loss(a, b, torch.ones(a.shape[0]))
    ),
    "triplet": pairs(lambda m, a, b: F.triplet_margin_loss(a, b, a.flip(-1))),
    "ctc": net(
        lambda m, x, y: F.ctc_loss(
            m.a(x).log_softmax(-1).transpose(0, 1),
            y + 1,
            torch.full((x.shape[0],), 6),
            torch.full((x.shape[0],), 2),
        ),
        lambda: (x(6, 6), classes(4, 2)),
        a=linear,
    ),
    "ctc_of_lengths": net(
        lambda m, x, y, ends: nn.CTCLoss(blank=3, zero_infinity=True)(
            m.a(x).log_softmax(-1).transpose(0, 1), y % 3, ends[:, 0] % 7, ends[:, 1]
        ),
        lambda: (x(6, 6), classes(4, 3), torch.cat([classes(3, 1) + 4, classes(4, 1)], 1)),
        a=linear,
    ),
    "ctc_summed": net(
        lambda m, x, y: F.ctc_loss(
            m.a(x).log_softmax(-1).transpose(0, 1),
            y + 1,
            (6,) * len(x),
            (2,) * len(x),
            reduction="sum",
        ),
        lambda: (x(6, 6), classes(4, 2)),
        a=linear,
    ),
    "focal": classification(focal),
    "dice": regression(dice),
    "log_cosh": regression(lambda h, y: (h - y).cosh().log().mean()),
    "quantile": regression(lambda h, y: torch.maximum(0.9 * (y - h), -0.1 * (y - h)).mean()),
    "hinge": signs(lambda h, y: (1 - h * y).relu().mean()),
    "weighted_by_the_batch": regression(by_weights),
    "weights_as_a_pair": regression(lambda h, y: (((h - y) ** 2).sum(), y.sum())),
    "count_as_a_pair": regression(lambda h, y: (((h - y) ** 2).sum(), torch.ones_like(y).sum())),
    "mixture_density": regression(mixture),
    "of_several_terms": net(several, lambda: (x(6), torch.rand(7, 5)), a=linear),
    "with_a_penalty": net(penalty, lambda: (x(6), torch.rand(7, 5)), a=linear),
    "triplet_own": pairs(
        lambda m, a, b: ((a - b).norm(dim=-1) - (a - b.flip(-1)).norm(dim=-1) + 1).relu().mean()
    ),
    "contrastive": pairs(contrastive),
    "contrastive_of_a_batch_margin": pairs(lambda m, a, b: (a @ b.t()).diagonal().mean()),
    "barlow_twins": pairs(barlow),
    "sum": regression(lambda h, y: ((h - y) ** 2).sum()),
    "sum_over_the_batch_size": regression(lambda h, y: ((h - y) ** 2).sum() / h.shape[0]),
    "sum_times_a_share_of_rows": regression(lambda h, y: 1.5 / h.shape[0] * ((h - y) ** 2).sum()),
    "mean_times_rows": regression(lambda h, y: F.mse_loss(h, y) * len(h)),
    "sum_over_a_tensor_of_rows": regression(
        lambda h, y: ((h - y) ** 2).sum() / torch.tensor(float(h.shape[0]))
    ),
    "similar_to_the_other_half": pairs(
        lambda m, a, b: F.cross_entropy(
            torch.cat([a, b]) @ torch.cat([b, a]).T,
            torch.cat([torch.arange(len(a)) + len(a), torch.arange(len(a))]),
        )
    ),
    "triplet_of_a_distance": pairs(
        lambda m, a, b: F.triplet_margin_with_distance_loss(
            a, b, a.flip(-1), distance_function=lambda p, q: 1 - F.cosine_similarity(p, q)
        )
    ),
    "masked_mean": regression(
        lambda h, y: ((h - y).pow(2).mean(-1) * (y[:, 0] > 0)).sum() / (y[:, 0] > 0).sum()
    ),
    "masked_mean_of_a_product": regression(
        lambda h, y: torch.sum((h - y).pow(2) * y.abs()) / y.abs().sum().double() * 0.5
    ),
    "sum_over_all_targets": regression(
        lambda h, y: ((h - y).pow(2).sum() + h.sum()) / torch.sum(torch.ones_like(y)).to(h.dtype)
    ),
    "beside_counts": classification(
        lambda h, y: {
            "loss": F.cross_entropy(h, y),
            "right": (h.argmax(-1) == y).sum(),
            "accuracy": (h.argmax(-1) == y).sum() / len(y),
        }
    ),
    "sum_over_a_number": regression(lambda h, y: ((h - y) ** 2).sum() / 100),
    "mean_of_means": regression(lambda h, y: ((h - y) ** 2).mean(-1).mean()),
    "mean_over_rows_first": regression(lambda h, y: ((h - y) ** 2).mean(0).sum()),
    "root_of_a_mean": regression(lambda h, y: F.mse_loss(h, y).sqrt()),
    "log_of_a_mean": regression(lambda h, y: F.mse_loss(h, y).log1p()),
    "ratio_of_means": regression(lambda h, y: (h - y).pow(2).mean() / y.pow(2).mean()),
    "standardized_by_the_batch": regression(lambda h, y: ((h - h.mean()) * y).mean()),
    "as_an_object": regression(lambda h, y: Output(F.mse_loss(h, y), h)),
    "as_a_dict": regression(lambda h, y: {"loss": F.mse_loss(h, y), "logits": h}),
    "of_one_element": regression(lambda h, y: F.mse_loss(h, y).reshape(1)),
    "with_logits_in_a_tuple": regression(lambda h, y: (F.mse_loss(h, y), h)),
    "before_two_others": regression(lambda h, y: [F.mse_loss(h, y), h, None]),
    "gaussian_nll_of_a_number": regression(
        lambda h, y: F.gaussian_nll_loss(h, y, torch.full((), 0.5).expand_as(h), full=True)
    ),
    "poisson_nll_summed": regression(lambda h, y: F.poisson_nll_loss(h, y, reduction="sum")),
    "multilabel_margin": net(
        lambda m, x, y: F.multilabel_margin_loss(m.a(x), y),
        lambda: (x(6), classes(5, 5)),
        a=lambda: nn.Linear(6, 5),
    ),
    "cross_entropy_of_positions_smoothed": net(
        lambda m, x, y: F.cross_entropy(
            m.a(x).mT, y, torch.linspace(0.5, 1, 5), ignore_index=2, label_smoothing=0.1
        ),
        lambda: (x(3, 6), classes(5, 3)),
        a=lambda: nn.Linear(6, 5),
    ),
    "cross_entropy_of_each_position": net(
        lambda m, x, y: F.cross_entropy(m.a(x).mT, y, reduction="none").square().mean(),
        lambda: (x(3, 6), classes(5, 3)),
        a=lambda: nn.Linear(6, 5),
    ),
    "sum_divided_twice": regression(lambda h, y: ((h - y) ** 2).sum() / h.shape[0] / 5),
    "sum_divided_in_place": regression(lambda h, y: ((h - y) ** 2).sum(0).div_(len(h)).sum()),
    "none": regression(lambda h, y: None),
    "not_a_scalar": regression(lambda h, y: (h - y) ** 2),
    "of_no_parameter": regression(lambda h, y: y.sum()),
    "an_integer": regression(lambda h, y: (h - y).sum().long()),
}
