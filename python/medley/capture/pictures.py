"""Image features among the words of a row, if each row has equally many images. PyTorch scatters
the features of all rows in one sequence. Here each row takes its own features, so rows stay
independent and padding is never used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from medley.capture.patches import Patch
from medley.capture.picture_grids import grid_patches


def masked_scatter(
    original: Callable[..., Tensor], rows: int, input: Tensor, mask: Tensor, source: Tensor
) -> Tensor:
    """Replaces `Tensor.masked_scatter` for `rows` rows: the n-th selected place of a row receives
    the n-th element of the row's part of `source`."""
    if input.dim() < 2 or input.shape[0] != rows or source.numel() % rows:
        return original(input, mask, source)
    width = input.shape[-1]
    if input.dim() == 3 and _is_of_words(mask, input) and source.shape[-1] == width:
        words = mask[..., 0] if mask.dim() == 3 else mask
        features = source.reshape(rows, -1, width)
        place = (words.to(torch.int64).cumsum(1) - 1).clamp(0, features.shape[1] - 1)
        taken = features.gather(1, place.unsqueeze(-1).expand(-1, -1, width))
        return torch.where(words.unsqueeze(-1), taken, input)
    flat = mask.expand_as(input).flatten(1)
    elements = source.reshape(rows, -1)
    place = (flat.to(torch.int64).cumsum(1) - 1).clamp(0, elements.shape[1] - 1)
    return torch.where(flat, elements.gather(1, place), input.flatten(1)).view(input.shape)


def _is_of_words(mask: Tensor, input: Tensor) -> bool:
    """Returns whether a mask is equal for all features of a word."""
    if mask.dim() != 3 or mask.shape[:2] != input.shape[:2]:
        return False
    return mask.shape[2] == 1 or mask.stride(2) == 0


def unbind(original: Callable[..., Any], rows: int, input: Tensor, dim: int = 0) -> Any:
    """Replaces `Tensor.unbind` of images whose parts are concatenated again: all of them are one
    part."""
    if dim == 0 and input.dim() > 1 and input.shape[0] and input.shape[0] % rows == 0:
        return (input.flatten(0, 1),)
    return original(input, dim)


def keep_all(
    self: Any, pixel_values: Tensor, pixel_attention_mask: Tensor | None = None, **options: Any
) -> Any:
    """Replaces `get_image_features` of Idefics 3 and SmolVLM, which drops images of only zeros.
    Here they stay, and no word uses them."""
    pixels = pixel_values.to(dtype=self.dtype).flatten(0, 1)
    if pixel_attention_mask is None:
        mask = torch.ones((pixels.shape[0], *pixels.shape[2:]), dtype=torch.bool)
    else:  # an image that attends to no part of itself gives NaN
        mask = pixel_attention_mask.flatten(0, 1).bool()
        mask = mask | ~mask.flatten(1).any(1)[:, None, None]
    size = self.config.vision_config.patch_size
    parts = mask.unfold(1, size, size).unfold(2, size, size)
    outputs = self.vision_model(
        pixel_values=pixels,
        patch_attention_mask=(parts.sum(dim=(-1, -2)) > 0).bool(),
        **{"return_dict": True, **options},
    )
    features = self.connector(outputs.last_hidden_state)
    outputs.pooler_output = [features.reshape(-1, features.shape[-1])]
    return outputs


def picture_patches(rows: int) -> Iterator[Patch]:
    """Yields the replacements that a capture of `rows` rows needs for models with images."""
    yield from grid_patches(rows)
    for kind, owner in (("idefics3", "Idefics3Model"), ("smolvlm", "SmolVLMModel")):
        module = sys.modules.get(f"transformers.models.{kind}.modeling_{kind}")
        if module is not None and hasattr(getattr(module, owner, None), "get_image_features"):
            yield getattr(module, owner), "get_image_features", keep_all
