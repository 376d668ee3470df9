"""The exceptions of capture, and a context that silences PyTorch."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator


class CaptureError(ValueError):
    """The model or its example batch cannot be captured. The message names the place and a fix."""


class RowsError(CaptureError):
    """The model cannot be captured with the rows in the assumed dims."""


ROWS_FIRST = (
    'Compute all rows at once. If the rows are not dim 0, as in [time, rows], pass rows={"x": 1}.'
)


def shortened(text: str, most: int = 200) -> str:
    """Returns a text in one line, cut off after `most` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 4]} ..."


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses PyTorch's messages about tracing."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
