"""The one exception that capturing raises, and quiet while it looks for what to raise."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator


class CaptureError(ValueError):
    """The model or its example batch cannot be captured; the message says where and what helps."""


class RowsError(CaptureError):
    """The model cannot be captured with the rows where the batch is taken to have them."""


ROWS_FIRST = (
    'Compute all rows at once. If the rows are not dim 0, as in [time, rows], pass rows={"x": 1}.'
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
