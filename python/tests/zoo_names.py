"""The names of all models as parameters of a test; apart, since processes import the zoo without
pytest."""

from __future__ import annotations

import pytest
from zoo import LARGE, ZOO

NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in ZOO]
