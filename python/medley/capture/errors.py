"""The one exception that capturing raises."""

from __future__ import annotations


class CaptureError(ValueError):
    """The model or its example batch cannot be captured; the message says where and what helps."""
