"""Models in plain PyTorch for tests, examples and benchmarks.

Each is `name(size="tiny", **overrides) -> (model, example_batch)`; the model returns its loss.
"""

from __future__ import annotations
