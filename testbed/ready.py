"""For programs in the testbed: marks this device as ready to be slowed down to its type. Imports
and rendezvous take long under a quota and are not measured. With `--when-ready` the testbed waits
until every device has called `ready()`, sets the quotas, and lets all continue. Programs in other
languages: create $MEDLEY_TESTBED/ready.$RANK, then wait until $MEDLEY_TESTBED/go exists."""

from __future__ import annotations

import os
import time
from pathlib import Path

FOLDER = "MEDLEY_TESTBED"
PATIENCE = 300.0  # seconds


def ready() -> None:
    """Waits until the quotas of all devices are set. Returns immediately outside the testbed."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    Path(folder, f"ready.{os.environ['RANK']}").touch()
    end = time.monotonic() + PATIENCE
    while not Path(folder, "go").exists():
        if time.monotonic() > end:
            raise TimeoutError(f"testbed: not all devices were ready within {PATIENCE:.0f} s")
        time.sleep(0.005)
