"""The models that the capture tests run over, by name: functions that return (model, batch)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

import medley.models as models
from medley.models import hf

Maker = Callable[..., tuple[nn.Module, Any]]

ZOO: dict[str, Maker] = {
    "mlp": models.mlp,
    "gpt": models.gpt,
    "gpt-dropout": functools.partial(models.gpt, dropout=0.1),
    "llama": models.llama,
    "bert": models.bert,
    "vit": models.vit,
    "vgg": models.vgg,
    "vgg-bn": functools.partial(models.vgg, batch_norm=True, dropout=0.2),
    "moe": models.moe,
    "hf-gpt2": hf.gpt2,
    "hf-llama": hf.llama,
    "hf-bert": hf.bert,
    "hf-vit": hf.vit,
}
