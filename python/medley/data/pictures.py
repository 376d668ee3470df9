"""Images of a row. A batch has the images of all rows in sequence, with varying numbers per row:

    pixel_values   A A B C C     of rows A, B, C and D, which has none

A graph has equally many for each row, padded with zeros, so that rows can be divided:

                   A A B 0 C C 0 0

Images of any size (Qwen2-VL) are patches with a grid of frames, height and width each. Here every
row has equally many patches and grids. Unused grids are 0 x 0 x 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from medley.data.row_dim import row_dim

_TOKENS = ("image_token_id", "image_token_index")  # keys of a config
_PADDING = {"pixel_attention_mask": 1}  # 0 for all others
_GRIDS = "image_grid_thw"
_MODELS_WITH_GRIDS = ("qwen2_vl", "qwen2_5_vl")  # capture reads the grids of these


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The tensors with an entry per image, and the places of images in texts."""

    token: int  # stands in a text for a part of an image
    each: int = 0  # tokens per image; 0: not yet known
    most: int = 0  # images per row; 0: the maximum in the batch
    merged: int = 0  # patches per side of a token; 0: images have no grids
    patches: int = 0  # per row, if images have grids; 0: the maximum in the batch
    words: str = "input_ids"
    names: tuple[str, ...] = ("pixel_values", "pixel_attention_mask", _GRIDS)

    def are_in(self, batch: Any) -> bool:
        """Returns whether a batch has words, which may include images."""
        if not isinstance(batch, Mapping) or not isinstance(batch.get(self.words), Tensor):
            return False
        return batch[self.words].dim() == 2 and (self.most > 0 or "pixel_values" in batch)

    def of(self, batch: Mapping[str, Any]) -> Pictures:
        """Returns a copy with the numbers of a batch from a processor. Raises ValueError if its
        images differ in their number of tokens."""
        found = self
        if "pixel_values_videos" in batch:
            raise ValueError(
                'batch["pixel_values_videos"]: found videos, expected pictures: no plan divides '
                "videos yet"
            )
        if _GRIDS in batch:
            return self._of_grids(batch)
        pixels = batch.get("pixel_values")
        tokens = self._tokens(batch)
        if not isinstance(pixels, Tensor):
            return found
        if pixels.dim() == 5:  # [rows, pictures, ...]
            return found if found.most else dataclasses.replace(found, most=pixels.shape[1])
        if len(pixels) and not found.each:
            each, rest = divmod(int(tokens.sum()), len(pixels))
            if rest or not each or (tokens % each).any():
                raise ValueError(
                    f'batch["pixel_values"]: found {len(pixels)} pictures and '
                    f"{int(tokens.sum())} picture tokens ({self.token}) in {self.words}, expected "
                    "equally many tokens for each picture, all in the row of the picture"
                )
            found = dataclasses.replace(found, each=each)
        if not found.most:
            most = max(1, int(found.counts(batch)["pixel_values"].max()))
            found = dataclasses.replace(found, most=most)
        return found

    def _of_grids(self, batch: Mapping[str, Any]) -> Pictures:
        if not self.merged:
            raise ValueError(
                f'batch["{_GRIDS}"]: found pictures of sizes that stand in the batch, expected '
                f"pictures of one size, or a model of {', '.join(_MODELS_WITH_GRIDS)}"
            )
        counts = self.counts(batch)
        most = {name: max(1, int(each.max())) for name, each in counts.items()}
        return dataclasses.replace(
            self,
            most=self.most or most[_GRIDS],
            patches=self.patches or max(self.merged**2, most["pixel_values"]),
        )

    def counts(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Returns the entries per row of each tensor. Raises ValueError if grids do not match the
        tokens."""
        tokens = self._tokens(batch)
        if not self.merged:
            return dict.fromkeys(self.names, tokens // max(1, self.each))
        patches = tokens * self.merged**2
        return {"pixel_values": patches, _GRIDS: _grids_of_rows(batch, patches)}

    def most_of(self, name: str) -> int:
        """Returns the entries per row of a tensor in a padded batch."""
        return self.patches if self.merged and name == "pixel_values" else self.most

    def padded(self, batch: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a batch with equally many images per row. `like`: dtype and shape of an entry,
        for missing tensors. Raises ValueError if a row has too many images."""
        result = dict(batch)
        for name, counts in self.counts(batch).items():
            value = batch.get(name)
            if isinstance(value, Tensor) and value.dim() == (5 if name == "pixel_values" else 4):
                result[name] = self._widened(name, value)
            elif isinstance(value, Tensor):
                self._check(name, value, counts)
                result[name] = self._filled(name, value, counts)
            elif name in like:
                dtype, shape = like[name]
                entries = value_shape(len(counts), self.most_of(name), shape)
                result[name] = torch.full(entries, _PADDING.get(name, 0), dtype=dtype)
        return result

    def stripped(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns a batch of `padded` without its padding."""
        result = dict(batch)
        if self.merged and _GRIDS in batch:
            patches = batch[_GRIDS].prod(1)
            of_rows = patches.reshape(-1, self.most).sum(1)
            inside = {_GRIDS: patches > 0, "pixel_values": _inside(of_rows, self.patches)}
        else:
            counts = self.counts(batch) if self.each else {}
            inside = {name: _inside(each, self.most) for name, each in counts.items()}
        for name, places in inside.items():
            value = batch.get(name)
            if isinstance(value, Tensor) and len(value) == len(places):
                result[name] = value[places.to(value.device)]
        return result

    def _tokens(self, batch: Mapping[str, Any]) -> Tensor:
        words: Tensor = batch[self.words]
        return (words == self.token).sum(1)

    def _check(self, name: str, value: Tensor, counts: Tensor) -> None:
        entries = "patches" if self.merged and name == "pixel_values" else "pictures"
        if len(value) != int(counts.sum()):
            raise ValueError(
                f'batch["{name}"]: found {len(value)} {entries}, expected the {int(counts.sum())} '
                f"that the tokens {self.token} of {self.words} stand for"
            )
        most = self.most_of(name)
        if int(counts.max()) > most:
            raise ValueError(
                f'batch["{name}"]: found a row of {int(counts.max())} {entries}, expected at most '
                f"the {most} of the batch that was captured: capture one with more"
            )

    def _filled(self, name: str, value: Tensor, counts: Tensor) -> Tensor:
        most = self.most_of(name)
        inside = _inside(counts, most)
        shape = (len(counts) * most, *value.shape[1:])
        filled = value.new_full(shape, _PADDING.get(name, 0))
        filled[inside.to(value.device)] = value
        return filled

    def _widened(self, name: str, value: Tensor) -> Tensor:
        lacking = self.most - value.shape[1]
        if lacking < 0:
            raise ValueError(
                f'batch["{name}"]: found {value.shape[1]} pictures for each row, expected at most '
                f"the {self.most} of the batch that was captured: capture one with more"
            )
        shape = (len(value), lacking, *value.shape[2:])
        return torch.cat([value, value.new_zeros(shape)], 1) if lacking else value


def _inside(counts: Tensor, most: int) -> Tensor:
    """Returns which entries of a padded batch are not padding."""
    return (torch.arange(most) < counts.reshape(-1, 1).cpu()).flatten()


def _grids_of_rows(batch: Mapping[str, Any], patches: Tensor) -> Tensor:
    """Returns the number of grids per row. `patches`: those of each row. Raises ValueError if an
    image has tokens in two rows."""
    grids = batch.get(_GRIDS)
    if not isinstance(grids, Tensor):
        return torch.zeros_like(patches)
    sizes = grids.prod(1).to(patches.device)
    ends, of_rows = sizes.cumsum(0), patches.cumsum(0)
    row = torch.searchsorted(of_rows, ends).clamp(max=len(patches) - 1)
    if len(ends) and (
        int(ends[-1]) != int(of_rows[-1]) or (ends - sizes < (of_rows - patches)[row]).any()
    ):
        raise ValueError(
            f'batch["{_GRIDS}"]: found pictures of {sizes.tolist()} patches and tokens for '
            f"{patches.tolist()} in the rows, expected all tokens of a picture in one row"
        )
    return torch.bincount(row, minlength=len(patches))


def value_shape(rows: int, most: int, shape: list[int]) -> list[int]:
    """Returns the shape of the images of `rows` rows. `shape`: without dim 0, as in graphs."""
    is_wide = len(shape) == 4  # [rows, pictures, channels, height, width]
    return [rows, *shape] if is_wide else [rows * most, *shape]


def pictures_of(model: Any) -> Pictures | None:
    """Returns the places of images in the texts of a model, from its config or an attribute, or
    None."""
    inner = getattr(model, "get_base_model", None)
    base = inner() if callable(inner) else model
    config: Any = getattr(base, "config", None)
    merged = 0
    if getattr(config, "model_type", "") in _MODELS_WITH_GRIDS:
        merged = config.vision_config.spatial_merge_size
    for holder in (config, base):
        for name in _TOKENS:
            token = getattr(holder, name, None)
            if isinstance(token, int):
                return Pictures(token, merged=merged)
    return None


def pictures_in(
    model: Any, types: Mapping[tuple[str, str], tuple[torch.dtype, str]]
) -> Pictures | None:
    """Returns the images of a captured graph of the model, or None. `types`: those of its
    inputs."""
    found, pixels = pictures_of(model), types.get(("batch", "pixel_values"), (None, ""))[1]
    dims = {name: row_dim(shape) for (kind, name), (_, shape) in types.items() if kind == "batch"}
    most = {name: dim.elements for name, dim in dims.items() if dim is not None}
    if found is None or "pixel_values" not in most or found.words not in dims:
        return None
    sizes = pixels.strip("[]").split(", ")
    if len(sizes) == 5:  # [rows, pictures, channels, height, width]
        return dataclasses.replace(found, most=int(sizes[1]))
    if found.merged:
        return dataclasses.replace(found, most=most[_GRIDS], patches=most["pixel_values"])
    return dataclasses.replace(found, most=most["pixel_values"])
