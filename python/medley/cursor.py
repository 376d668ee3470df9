"""The position of training in its data."""

from __future__ import annotations

from typing import NamedTuple


class Cursor(NamedTuple):
    """The position of the next step: its global batch within an epoch, and the seed of the
    order."""

    epoch: int
    batch: int
    seed: int
