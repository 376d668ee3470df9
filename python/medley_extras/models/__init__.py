"""Models in plain PyTorch for tests, examples and benchmarks.

Each is `name(size="tiny", **overrides) -> (model, example_batch)`; the model returns its loss.
`medley_extras.models.hf` has equivalents for models of transformers.
"""

from __future__ import annotations

from medley_extras.models.bert import bert
from medley_extras.models.gpt import gpt
from medley_extras.models.llama import llama
from medley_extras.models.mlp import mlp
from medley_extras.models.moe import bert_moe, moe
from medley_extras.models.resnet import resnet
from medley_extras.models.vgg import vgg
from medley_extras.models.vit import vit

__all__ = ["bert", "bert_moe", "gpt", "llama", "mlp", "moe", "resnet", "vgg", "vit"]
