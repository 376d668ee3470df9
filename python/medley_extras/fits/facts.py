"""The facts and traces of a model: they decide whether it fits, and give its graph at any
length."""

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
    trained: int  # trainable ones among them
    kept: int  # persistent bytes
    longest: int  # maximum length of its graphs, in tokens
    takes_tokens: bool


@dataclasses.dataclass(frozen=True)
class Traces:
    """Graphs with two and with three times the `unit` of repeated layers, each at a length of its
    own."""

    two: str
    three: str
    lengths: tuple[int, int]
    unit: int
    layers: int

    @functools.cached_property
    def stretched(self) -> Stretched:
        """Returns the growth of the graphs. Raises UnevenError if it is uneven."""
        return Stretched(self.two, self.lengths[0], self.three, self.lengths[1], self.unit)
