"""The location of the packages of public models, and torchvision without its own kernels. PyPI's
wheel of torchvision is built for CUDA, and its import fails with a CPU PyTorch. Only one of its
kernels has no other form in the package: the selection of boxes that do not overlap."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
from torch import Tensor

SITE = Path(sys.prefix) / "zoo"  # target of scripts/setup.sh --nightly


def find() -> None:
    """Makes `import timm` and the like work if the packages are there, and torchvision, which they
    import too."""
    if SITE.is_dir() and str(SITE) not in sys.path:
        sys.path.append(str(SITE))
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}",
                "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            )
        torch.library.impl("torchvision::nms", "cpu", _apart)
        boxes = importlib.import_module("torchvision.ops.boxes")
        boxes._assert_has_ops = lambda: None  # type: ignore[attr-defined]


def _apart(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Returns which boxes no other box of a higher score overlaps, best first."""
    from torchvision.ops import box_iou

    overlaps = box_iou(boxes, boxes) > threshold
    is_left = torch.ones(len(boxes), dtype=torch.bool)
    kept: list[int] = []
    for box in scores.argsort(descending=True).tolist():
        if is_left[box]:
            kept.append(box)
            is_left &= ~overlaps[box]
    return torch.tensor(kept, dtype=torch.long)
