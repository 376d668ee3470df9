"""How threads are scheduled that Gloo starts for a job, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

import warm_start
from medley.run import threads
from medley.run.groups import GenerationGroup

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the policy is one of Linux")


def policies() -> dict[int, int]:
    """Returns the policy of every thread of this process."""
    return {int(each): os.sched_getscheduler(int(each)) for each in os.listdir("/proc/self/task")}


# A thread that interrupts the sender spins on the sender's lock until its slice ends.
def test_gloo_threads_do_not_interrupt() -> None:
    before = policies()
    group = GenerationGroup(HashStore(), "generation", 0, 1, "lo", (10.0, 10.0))
    new = [policy for task, policy in policies().items() if task not in before]
    group.close()
    assert len(new) > 1  # for messages, and for collectives
    assert set(new) == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


# Its default limit would be that of an operation, ten minutes.
def test_members_that_have_left_are_not_awaited() -> None:
    begin = time.monotonic()
    with pytest.raises(RuntimeError):
        GenerationGroup(HashStore(), "generation", 0, 2, "lo", (0.5, 600.0))
    assert time.monotonic() - begin < 60


def test_explicit_policy_stays() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        with threads.patient():
            pass
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


# The interpreter starts no threads when it ends, from 3.12 on.
ENDS = """
import atexit, threading
import torch.distributed as dist
from medley.run import ends

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

atexit.register(lambda: print("group:", dist.is_initialized()))
ends.install()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
atexit.register(lambda: setattr(threading.Thread, "start", refuse))
"""


def test_they_end_before_the_interpreter() -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        warm_start.command([sys.executable, "-c", ENDS]),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "group: False\n", "")
