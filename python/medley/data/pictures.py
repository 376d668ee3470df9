"""Pictures of a row. A batch has those of all rows one after the other, in equal or unlike numbers:

    pixel_values   A A B C C     of rows A, B, C and D, which has none

A graph has equally many for each row, so that rows can be divided, padded with zeros:

                   A A B 0 C C 0 0
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


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Which tensors have an entry for each picture, and how texts say where pictures belong."""

    token: int  # stands in a text for a part of a picture
    each: int = 0  # so many of them for each picture; 0: not known yet
    most: int = 0  # pictures of a row; 0: as many as the row of a batch that has most
    words: str = "input_ids"
    names: tuple[str, ...] = ("pixel_values", "pixel_attention_mask")

    def are_in(self, batch: Any) -> bool:
        """Returns whether a batch has words, which may have pictures."""
        if not isinstance(batch, Mapping) or not isinstance(batch.get(self.words), Tensor):
            return False
        return batch[self.words].dim() == 2 and (self.most > 0 or "pixel_values" in batch)

    def of(self, batch: Mapping[str, Any]) -> Pictures:
        """Returns these with the numbers of a batch as a processor gives it. Raises ValueError if
        its pictures have unlike numbers of tokens."""
        found = self
        if "image_grid_thw" in batch:
            raise ValueError(
                'batch["image_grid_thw"]: found pictures of sizes that stand in the batch, '
                "expected pictures of one size, [pictures, channels, height, width]"
            )
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
            most = max(1, int(found.counts(batch).max()))
            found = dataclasses.replace(found, most=most)
        return found

    def counts(self, batch: Mapping[str, Any]) -> Tensor:
        """Returns how many pictures each row has."""
        return self._tokens(batch) // max(1, self.each)

    def padded(self, batch: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a batch with equally many pictures for each row. `like`: for a tensor that is not
        there, its dtype and the shape of an entry. Raises ValueError if a row has too many."""
        result = dict(batch)
        counts = self.counts(batch)
        for name in self.names:
            value = batch.get(name)
            if isinstance(value, Tensor) and value.dim() == (5 if name == "pixel_values" else 4):
                result[name] = self._widened(name, value)
            elif isinstance(value, Tensor):
                self._check(name, value, counts)
                result[name] = self._filled(name, value, counts)
            elif name in like:
                dtype, shape = like[name]
                entries = value_shape(len(counts), self.most, shape)
                result[name] = torch.full(entries, _PADDING.get(name, 0), dtype=dtype)
        return result

    def stripped(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns a batch of `padded` without its padding."""
        result, counts = dict(batch), self.counts(batch)
        inside = self._inside(counts)
        for name in self.names:
            value = batch.get(name)
            if isinstance(value, Tensor) and len(value) == len(inside) and self.each:
                result[name] = value[inside.to(value.device)]
        return result

    def _tokens(self, batch: Mapping[str, Any]) -> Tensor:
        words: Tensor = batch[self.words]
        return (words == self.token).sum(1)

    def _check(self, name: str, value: Tensor, counts: Tensor) -> None:
        if len(value) != int(counts.sum()):
            raise ValueError(
                f'batch["{name}"]: found {len(value)} pictures, expected the {int(counts.sum())} '
                f"that the tokens {self.token} of {self.words} stand for"
            )
        if int(counts.max()) > self.most:
            raise ValueError(
                f'batch["{name}"]: found a row of {int(counts.max())} pictures, expected at most '
                f"the {self.most} of the batch that was captured: capture one with more"
            )

    def _inside(self, counts: Tensor) -> Tensor:
        """Returns which pictures of a padded batch belong to a row, and pad none."""
        return (torch.arange(self.most) < counts.reshape(-1, 1).cpu()).flatten()

    def _filled(self, name: str, value: Tensor, counts: Tensor) -> Tensor:
        inside = self._inside(counts)
        shape = (len(counts) * self.most, *value.shape[1:])
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
    for holder in (getattr(base, "config", None), base):
        for name in _TOKENS:
            token = getattr(holder, name, None)
            if isinstance(token, int):
                return Pictures(token)
    return None


def pictures_in(
    model: Any, types: Mapping[tuple[str, str], tuple[torch.dtype, str]]
) -> Pictures | None:
    """Returns the pictures of a graph that was captured of a model, `types` of what it takes; None
    if it takes none."""
    found, shape = pictures_of(model), types.get(("batch", "pixel_values"), (None, ""))[1]
    dim = row_dim(shape)
    if found is None or dim is None or ("batch", found.words) not in types:
        return None
    sizes = shape.strip("[]").split(", ")
    return dataclasses.replace(found, most=int(sizes[1]) if len(sizes) == 5 else dim.elements)
