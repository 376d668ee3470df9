"""The text of a model's captured graph."""

from __future__ import annotations

from typing import Any

from torch import nn

from medley.capture import capture_full


def capture_text(
    model: nn.Module, example_batch: Any, name: str | None = None, **options: Any
) -> str:
    """Returns the text of `capture_full`."""
    return capture_full(model, example_batch, name, **options).text
