"""The one exception that capturing raises, and quiet while it looks for what to raise."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator


class CaptureError(ValueError):
    """The model or its example batch cannot be captured; the message says where and what helps."""


ROWS_FIRST = (
    "Compute all rows at once; dim 0 of a batch tensor is its rows, so transpose one of "
    "[time, rows] and give recurrent layers batch_first=True."
)


def shortened(text: str, most: int = 200) -> str:
    """Returns a text in one line, and its beginning if it is long."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 4]} ..."


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps PyTorch's own messages about tracing away from the user."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
