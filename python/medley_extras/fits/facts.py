"""The facts and traces of a model: they tell whether it fits, and make its graph at any length."""

from __future__ import annotations

import dataclasses
import functools

from medley_extras.fits.stretch import Stretched


@dataclasses.dataclass(frozen=True)
class Facts:
    """The properties of a model that its graph does not have."""

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
        """Returns how the graphs grow. Raises UnevenError if they do not grow evenly."""
        return Stretched(self.two, self.lengths[0], self.three, self.lengths[1], self.unit)
