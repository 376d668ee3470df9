"""What is found of a model: to know whether it fits, and to make its graph at any length."""

from __future__ import annotations

import dataclasses
import functools

from medley.fits.stretch import Stretched


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is asked of a model beside its graph."""

    kind: str
    dtype: str
    weights: int
    trained: int  # of them
    kept: int  # bytes, from step to step
    longest: int  # in tokens, that its graphs hold for
    takes_tokens: bool


@dataclasses.dataclass(frozen=True)
class Traces:
    """Graphs with two and with three times the `unit` of layers that repeat, each at a length of
    its own."""

    two: str
    three: str
    lengths: tuple[int, int]
    unit: int
    layers: int

    @functools.cached_property
    def stretched(self) -> Stretched:
        """What says how they grow; raises UnevenError where that is not evenly."""
        return Stretched(self.two, self.lengths[0], self.three, self.lengths[1], self.unit)
