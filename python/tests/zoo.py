"""The models that the capture tests run over, by name: functions that return (model, batch)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

import medley_extras.models as models
from medley_extras.models import hf

Maker = Callable[..., tuple[nn.Module, Any]]

# For eager runs, which are the reference: the default kernel has no float64. Capture does not care.
_PLAIN: dict[str, Any] = {"experts_implementation": "eager"}

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
    "bert-moe": models.bert_moe,
    "resnet": models.resnet,
    "hf-gpt2": hf.gpt2,
    "hf-llama": hf.llama,
    "hf-bert": hf.bert,
    "hf-vit": hf.vit,
    "hf-mixtral": functools.partial(hf.mixtral, **_PLAIN),
    "hf-mixtral-balanced": functools.partial(hf.mixtral, output_router_logits=True, **_PLAIN),
    "hf-qwen3-moe": functools.partial(hf.qwen3_moe, **_PLAIN),
    "hf-t5": hf.t5,
}

# The larger graphs. Most tests of every model take them nightly only.
LARGE = ("bert-moe", "resnet", "hf-mixtral", "hf-mixtral-balanced", "hf-qwen3-moe", "hf-t5")
