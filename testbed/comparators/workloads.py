"""The workloads of contestants: `medley capture testbed.comparators.workloads:vgg -o vgg.graph`.

A name may set other rows: `vgg?rows=576`.

They are scaled down to about a second per step on a fraction of a core, with the proportions that
make the originals hard. Most of VGG's parameters are in its classifier, most of the mixture's in
its experts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from medley.capture import model_name
from medley_extras import models

Batch = dict[str, Tensor]
LEARNING_RATE = 1e-3
SEED = 0


def vgg(rows: int = 144, depth: int = 1) -> tuple[nn.Module, Batch]:
    """Returns five convolutions, or `depth` times as many, and a classifier with 90 % of the 1.46 M
    parameters."""
    torch.manual_seed(SEED)
    channels = ((32, 32) * depth, (64, 64) * depth, (128,) * depth)
    return models.vgg(image=32, channels=channels, hidden=512, batch=rows)


def moe(rows: int = 72) -> tuple[nn.Module, Batch]:
    """Returns a dense layer and one of eight experts, twice as many as devices, with 80 % of the
    2.6 M parameters: both as in HAP's BERT-MoE (453 of 560 M)."""
    torch.manual_seed(SEED)
    sizes: dict[str, Any] = {"positions": 64, "width": 128, "hidden": 1024, "layers": 2}
    return models.moe(**sizes, experts=8, vocabulary=512, batch=rows)


def bert_moe(rows: int = 72) -> tuple[nn.Module, Batch]:
    """Returns the same with experts of limited room, as in HAP's BERT-MoE: no op has a shape that
    depends on data, and tokens travel to their experts."""
    torch.manual_seed(SEED)
    sizes: dict[str, Any] = {"positions": 64, "width": 128, "hidden": 1024, "layers": 2}
    return models.bert_moe(**sizes, experts=8, capacity=1.25, vocabulary=512, batch=rows)


def bert(rows: int = 72) -> tuple[nn.Module, Batch]:
    """Returns four layers, and a vocabulary with 39 % of the 1.35 M parameters."""
    torch.manual_seed(SEED)
    sizes: dict[str, Any] = {"positions": 64, "width": 128, "hidden": 512, "layers": 4}
    return models.bert(**sizes, vocabulary=2048, tied=False, batch=rows)


def vit(rows: int = 72) -> tuple[nn.Module, Batch]:
    """Returns four layers on 64 patches, 0.8 M parameters."""
    torch.manual_seed(SEED)
    sizes: dict[str, Any] = {"image": 32, "patch": 4, "width": 128, "hidden": 512, "layers": 4}
    return models.vit(**sizes, batch=rows)


def gpt(rows: int = 48, layers: int = 8, width: int = 128) -> tuple[nn.Module, Batch]:
    """Returns eight layers with 92 % of the 1.7 M parameters, for pipelines."""
    torch.manual_seed(SEED)
    sizes: dict[str, Any] = {"vocabulary": 512, "positions": 64, "width": width}
    return models.gpt(**sizes, layers=layers, tied=False, batch=rows)


NAMES = ("vgg", "moe", "bert_moe", "bert", "vit")


def load(name: str) -> tuple[nn.Module, Batch]:
    """Returns a model and its global batch."""
    return model_name.load(full_name(name))


def full_name(name: str) -> str:
    """Returns the name of a workload for `medley capture`."""
    return f"{__name__}:{name}"


def batches(example: Batch, count: int) -> list[Batch]:
    """Returns `count` global batches: the rows of the example in other orders, and other labels."""
    generator = torch.Generator().manual_seed(SEED)
    result = []
    for _ in range(count):
        rows = len(next(iter(example.values())))
        order = torch.randperm(rows, generator=generator)
        batch = {name: value[order] for name, value in example.items()}
        labels = batch["labels"].flatten()
        mixed = labels[torch.randperm(len(labels), generator=generator)]
        batch["labels"] = mixed.view_as(batch["labels"])
        result.append(batch)
    return result
