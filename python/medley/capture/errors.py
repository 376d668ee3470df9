"""The one exception that capturing raises, and quiet while it looks for what to raise."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator


class CaptureError(ValueError):
    """The model or its example batch cannot be captured; the message says where and what helps."""


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
