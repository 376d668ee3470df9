"""Pictures of a row. A batch has those of all rows one after the other, in equal or unlike numbers:

    pixel_values   A A B C C     of rows A, B, C and D, which has none

A graph has equally many for each row, so that rows can be divided, padded with zeros:

                   A A B 0 C C 0 0

Pictures of any size (Qwen2-VL) come as patches, with a grid of frames, height and width for each:
here every row has equally many patches and equally many grids, those behind the last 0 x 0 x 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from medley.data.row_dim import row_dim

_TOKENS = ("image_token_id", "image_token_index")  # of a config
_PADDING = {"pixel_attention_mask": 1}  # others are 0
_GRIDS = "image_grid_thw"
_MODELS_WITH_GRIDS = ("qwen2_vl", "qwen2_5_vl")  # whose grids a capture reads


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Which tensors have an entry for each picture, and how texts say where pictures belong."""

    token: int  # stands in a text for a part of a picture
    each: int = 0  # so many of them for each picture; 0: not known yet
    most: int = 0  # pictures of a row; 0: as many as the row of a batch that has most
    merged: int = 0  # patches of a side that a token stands for; 0: pictures have no grids
    patches: int = 0  # of a row, if pictures have grids; 0: as of the row that has most
    words: str = "input_ids"
    names: tuple[str, ...] = ("pixel_values", "pixel_attention_mask", _GRIDS)

    def are_in(self, batch: Any) -> bool:
        """Returns whether a batch has words, which may have pictures."""
        if not isinstance(batch, Mapping) or not isinstance(batch.get(self.words), Tensor):
            return False
        return batch[self.words].dim() == 2 and (self.most > 0 or "pixel_values" in batch)

    def of(self, batch: Mapping[str, Any]) -> Pictures:
        """Returns these with the numbers of a batch as a processor gives it. Raises ValueError if
        its pictures have unlike numbers of tokens."""
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
        """Returns how many entries each row has of each tensor. Raises ValueError if pictures have
        grids that do not fit the tokens."""
        tokens = self._tokens(batch)
        if not self.merged:
            return dict.fromkeys(self.names, tokens // max(1, self.each))
        patches = tokens * self.merged**2
        return {"pixel_values": patches, _GRIDS: _grids_of_rows(batch, patches)}

    def most_of(self, name: str) -> int:
        """Returns how many entries of a tensor each row of a padded batch has."""
        return self.patches if self.merged and name == "pixel_values" else self.most

    def padded(self, batch: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a batch with equally many pictures for each row. `like`: for a tensor that is not
        there, its dtype and the shape of an entry. Raises ValueError if a row has too many."""
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
    """Returns which entries of a padded batch belong to a row, and pad none."""
    return (torch.arange(most) < counts.reshape(-1, 1).cpu()).flatten()


def _grids_of_rows(batch: Mapping[str, Any], patches: Tensor) -> Tensor:
    """Returns how many grids each row has; `patches`: of each row. Raises ValueError if a picture
    has tokens in two rows."""
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
    """Returns the shape of the pictures of so many rows; `shape`: behind dim 0, as graphs have
    it."""
    is_wide = len(shape) == 4  # [rows, pictures, channels, height, width]
    return [rows, *shape] if is_wide else [rows * most, *shape]


def pictures_of(model: Any) -> Pictures | None:
    """Returns how texts of a model say where pictures belong, as its config or an attribute of it
    says; None if it does not."""
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
    """Returns the pictures of a graph that was captured of a model, `types` of what it takes; None
    if it takes none."""
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
