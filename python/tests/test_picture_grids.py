"""Images of any size: the replacements of a capture compared with the loops of Qwen2-VL,
Qwen2.5-VL."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from vision_models import MODELS, PICTURE

import medley
from medley.capture.picture_grids import grid_patches
from medley.data.pictures import Pictures, pictures_of

KINDS = ["qwen2_vl", "qwen2_5_vl"]


def _batch(seed: int) -> dict[str, Any]:
    """Returns rows with pictures of one or several frames at random places, and holes in the
    mask."""
    draw = random.Random(seed)
    rows, length, grids = draw.randint(1, 4), 64, []
    ids = torch.full((rows, length), 5)
    mask = torch.ones(rows, length, dtype=torch.int64)
    for row in range(rows):
        place = draw.randint(1, 5)
        for _ in range(draw.randint(0, 2)):
            grid = draw.randint(1, 2), 2 * draw.randint(1, 4), 2 * draw.randint(1, 4)
            tokens = grid[0] * grid[1] * grid[2] // 4
            if place + tokens >= length:
                break
            ids[row, place : place + tokens] = PICTURE
            grids.append(grid)
            place += tokens + draw.randint(1, 4)
        for hole in range(draw.randint(0, 4)):
            end = hole if draw.random() < 0.5 else length - 1 - hole
            mask[row, end] = int(ids[row, end] == PICTURE)
    patches = sum(t * h * w for t, h, w in grids)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "mm_token_type_ids": (ids == PICTURE).long(),
        "pixel_values": torch.randn(patches, 24),
        "image_grid_thw": torch.tensor(grids, dtype=torch.int64).reshape(-1, 3),
    }


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_features_and_positions_are_those_of_the_original(kind: str, implementation: str) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]([1])[0].model
    model.set_attn_implementation(implementation)
    tried = 0
    for seed in range(12):
        batch = _batch(seed)
        if not len(batch["image_grid_thw"]):
            continue
        pictures = Pictures(PICTURE, merged=2).of(batch)
        padded = pictures.padded(batch, {})
        want, positions = _run(model, batch)
        with pytest.MonkeyPatch.context() as patch:
            for owner, name, value in list(grid_patches(len(batch["input_ids"]))):
                patch.setattr(owner, name, value)
            got, own = _run(model, padded)
        assert torch.equal(own, positions)
        tokens = (batch["input_ids"] == PICTURE).sum(1).tolist()
        rows = got.reshape(len(tokens), -1, got.shape[-1])
        got = torch.cat([row[:count] for row, count in zip(rows, tokens, strict=True)])
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        tried += 1
    assert tried > 8


def _run(model: Any, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    outputs = model.get_image_features(
        batch["pixel_values"], batch["image_grid_thw"], return_dict=True
    )
    names = ("input_ids", "image_grid_thw", "attention_mask", "mm_token_type_ids")
    given = {name: batch[name] for name in names}
    positions = model.compute_3d_position_ids(
        **given, video_grid_thw=None, inputs_embeds=None, past_key_values=None
    )
    return torch.cat(list(outputs.pooler_output)), positions


def test_patches_and_grids_are_padded_by_row_and_back() -> None:
    model, batch = MODELS["qwen2_vl"]([1, 0, 2])
    found = pictures_of(model)
    assert found is not None
    pictures = found.of(batch)
    assert (pictures.most, pictures.patches) == (2, 64)
    padded = pictures.padded(batch, {})
    assert padded["image_grid_thw"].prod(1).tolist() == [16, 0, 0, 0, 32, 32]
    assert len(padded["pixel_values"]) == 3 * 64
    for name, value in pictures.stripped(padded).items():
        assert torch.equal(value, batch[name])


def test_grids_that_do_not_fit_are_refused() -> None:
    model, batch = MODELS["qwen2_vl"]([1, 0, 2])
    with pytest.raises(ValueError, match="all tokens of a picture in one row"):
        medley.capture(model, {**batch, "image_grid_thw": batch["image_grid_thw"].flip(0)})
    with pytest.raises(ValueError, match="found videos, expected pictures"):
        medley.capture(model, {**batch, "pixel_values_videos": batch["pixel_values"]})
    with pytest.raises(ValueError, match="or a model of qwen2_vl, qwen2_5_vl"):
        Pictures(PICTURE).of(batch)
    pictures = Pictures(PICTURE, merged=2).of(batch)
    with pytest.raises(ValueError, match="found a row of 80 patches, expected at most the 64"):
        pictures.padded(MODELS["qwen2_vl"]([3, 0, 1])[1], {})
