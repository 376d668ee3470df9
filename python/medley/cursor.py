"""Where training is in its data."""

from __future__ import annotations

from typing import NamedTuple


class Cursor(NamedTuple):
    """Where the rows of the next step are: the number of its global batch within an epoch, and the
    seed of the order."""

    epoch: int
    batch: int
    seed: int
