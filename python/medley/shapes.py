"""Shapes as graphs print them."""

from __future__ import annotations


def sizes_of(shape: str) -> list[int]:
    """Returns the sizes in "[6, 5]"; the shape of a parameter or buffer has no symbols."""
    return [int(size) for size in shape.strip("[]").split(", ") if size]
