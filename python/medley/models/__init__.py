"""Models in plain PyTorch for tests, examples and benchmarks.

Each is `name(size="tiny", **overrides) -> (model, example_batch)`; the model returns its loss.
`medley.models.hf` has the same for models of the transformers package.
"""

from __future__ import annotations

from medley.models.bert import bert
from medley.models.gpt import gpt
from medley.models.llama import llama
from medley.models.mlp import mlp
from medley.models.moe import bert_moe, moe
from medley.models.resnet import resnet
from medley.models.vgg import vgg
from medley.models.vit import vit

__all__ = ["bert", "bert_moe", "gpt", "llama", "mlp", "moe", "resnet", "vgg", "vit"]
