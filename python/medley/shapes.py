"""Shapes as graphs print them."""

from __future__ import annotations


def sizes_of(shape: str) -> list[int]:
    """Returns the sizes in "[6, 5]". Shapes of parameters and buffers have no symbols."""
    return [int(size) for size in shape.strip("[]").split(", ") if size]
