"""Images of any size, as in Qwen2-VL and Qwen2.5-VL: patches, and a grid per image.

The originals loop over grids, and their attention over images. Here positions and attention masks
of patches are functions of tensors, separately for each row:

    grids      [rows, pictures, 3]: frames, height, width in patches; 0 pads
    patches    [rows, patches]: picture, frame, height, width of a patch
    positions  [3, rows, tokens]: of frame, height and width, as the language model rotates them
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from medley.capture.patches import Patch

# Module of transformers, and its classes: model, vision tower, attention of the tower.
_MODELS = (
    ("qwen2_vl", "Qwen2VLModel", "Qwen2VisionTransformerPretrainedModel", "VisionAttention"),
    (
        "qwen2_5_vl",
        "Qwen2_5_VLModel",
        "Qwen2_5_VisionTransformerPretrainedModel",
        "Qwen2_5_VLVisionAttention",
    ),
)


class _Patches(NamedTuple):
    """The places of the patches of each row, [rows, patches]. `width_of`: width of their image."""

    picture: Tensor
    frame: Tensor
    height: Tensor
    width: Tensor
    size_of: Tensor  # patches per frame
    width_of: Tensor


def _entry(of_pictures: Tensor, picture: Tensor) -> Tensor:
    """Returns the entry [rows, n] of the image of each element. Padding takes the last image."""
    return of_pictures.gather(1, picture.clamp(max=of_pictures.shape[1] - 1))


def _begun(sizes: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the image of each place [rows, n], and its offset from the first place of the
    image."""
    ends = sizes.cumsum(1)
    picture = (place.unsqueeze(-1) >= ends.unsqueeze(1)).sum(-1)
    return picture, place - _entry(ends - sizes, picture)


def _patches(grids: Tensor, count: int, merged: int) -> _Patches:
    """Returns the places of patches. They are in blocks of `merged` x `merged`, block after
    block."""
    sizes = grids.prod(-1)
    place = torch.arange(count).expand(grids.shape[0], -1)
    picture, offset = _begun(sizes, place)
    height = _entry(grids[..., 1], picture).clamp(min=merged)
    width = _entry(grids[..., 2], picture).clamp(min=merged)
    frame, rest = offset // (height * width), offset % (height * width)
    block, inside = rest // merged**2, rest % merged**2
    across = width // merged
    return _Patches(
        picture,
        frame,
        block // across * merged + inside // merged,
        block % across * merged + inside % merged,
        height * width,
        width,
    )


def _same(group: Tensor) -> Tensor:
    """Returns which patches attend to each other, [rows, 1, patches, patches]: those of one
    group."""
    return group[:, None, :, None] == group[:, None, None, :]


def _vision(self: Any, pixels: Tensor, grid_thw: Tensor, **options: Any) -> Any:
    """Replaces the forward of a vision tower: pixels [rows * patches, width], grids as above."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    merged, count = self.spatial_merge_size, pixels.shape[0] // grid_thw.shape[0]
    places = _patches(grid_thw, count, merged)
    first = places.picture * count
    sees = _same(first + places.frame)
    whole = getattr(self, "fullatt_block_indexes", None)
    sees_window = sees
    if whole is not None:
        side = self.window_size // merged // self.patch_size * merged
        across = places.height // side * places.width_of + places.width // side
        sees_window = _same(first + places.frame * places.size_of + across)
    hidden = self.patch_embed(pixels)
    positions = torch.stack([places.height, places.width], -1).flatten(0, 1)
    turns = self.rotary_pos_emb(hidden, positions)
    for index, block in enumerate(self.blocks):
        seen = sees if whole is None or index in whole else sees_window
        hidden = block(hidden, cu_seqlens=seen, position_embeddings=turns, **options)
    return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=self.merger(hidden))


def _attention(
    self: Any,
    hidden_states: Tensor,
    cu_seqlens: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    **options: Any,
) -> Tensor:
    """Replaces the forward of a vision tower's attention. `cu_seqlens` is the mask of `_same`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    own = sys.modules[type(self).__module__]
    rows = cu_seqlens.shape[0]
    parts = self.qkv(hidden_states).reshape(hidden_states.shape[0], 3, self.num_heads, -1)
    query, key, value = parts.permute(1, 0, 2, 3).unbind(0)
    query, key = own.apply_rotary_pos_emb_vision(query, key, *position_embeddings)
    heads = [each.unflatten(0, (rows, -1)).transpose(1, 2) for each in (query, key, value)]
    kind = self.config._attn_implementation
    mask = cu_seqlens
    if kind == "eager":
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(
            ~mask, torch.finfo(query.dtype).min
        )
        run = own.eager_attention_forward
    else:
        run = ALL_ATTENTION_FUNCTIONS["sdpa"]
    mixed, _ = run(self, *heads, attention_mask=mask, scaling=self.scaling, is_causal=False)
    result: Tensor = self.proj(mixed.reshape(hidden_states.shape[0], -1))
    return result


def _positions(original: Callable[..., Tensor | None], self: Any, **given: Any) -> Tensor | None:
    """Replaces `compute_3d_position_ids`. Tokens of a text count up. An image counts frames,
    heights and widths from there, and the text after it continues after the largest of these."""
    ids, grids, kinds = (
        given.get(name) for name in ("input_ids", "image_grid_thw", "mm_token_type_ids")
    )
    if ids is None or grids is None or kinds is None:
        return original(self, **given)
    mask = given.get("attention_mask")
    merged = self.config.vision_config.spatial_merge_size
    grids = grids.reshape(ids.shape[0], -1, 3)
    seen = torch.ones_like(kinds).bool() if mask is None else mask.bool()
    is_picture, is_text = seen & (kinds != 0), seen & (kinds == 0)
    texts, tokens = is_text.long().cumsum(1), is_picture.long().cumsum(1)
    heights, widths = grids[..., 1] // merged, grids[..., 2] // merged
    picture, offset = _begun(grids[..., 0] * heights * widths, tokens - is_picture.long())
    advances = torch.maximum(heights, widths)
    before = torch.cat([torch.zeros_like(advances[:, :1]), advances.cumsum(1)], 1)
    start = texts - is_text.long() + before.gather(1, picture)
    height = _entry(heights, picture).clamp(min=1)
    width = _entry(widths, picture).clamp(min=1)
    rest = offset % (height * width)
    inside = torch.stack([offset // (height * width), rest // width, rest % width])
    positions = start + torch.where(is_picture, inside, 0)
    return torch.where(seen, positions, 0).to(ids.dtype)


def grid_patches(rows: int) -> Iterator[Patch]:
    """Yields owner, name and replacement for batches of `rows` rows, for the imported models."""

    def features(self: Any, pixel_values: Tensor, image_grid_thw: Tensor, **options: Any) -> Any:
        grids = image_grid_thw.reshape(rows, -1, 3)
        options.pop("return_dict", None)
        outputs = self.visual(pixel_values.type(self.visual.dtype), grid_thw=grids, **options)
        outputs.pooler_output = [outputs.pooler_output]  # the original has a list of images
        return outputs

    for kind, model, tower, attention in _MODELS:
        module = sys.modules.get(f"transformers.models.{kind}.modeling_{kind}")
        if module is None:
            continue
        owner = getattr(module, model)
        yield owner, "get_image_features", features
        original = owner.compute_3d_position_ids
        yield (
            owner,
            "compute_3d_position_ids",
            lambda self, original=original, **given: _positions(original, self, **given),
        )
        yield getattr(module, tower), "forward", _vision
        yield getattr(module, attention), "forward", _attention
