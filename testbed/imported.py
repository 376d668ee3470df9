"""Runs a module after all imports, when all devices are ready, for `--when-ready`:

    python -m testbed --when-ready cluster.yaml -- python -m testbed.imported medley profile ...

Under a quota, importing PyTorch alone would take a minute. It is for programs without ready().
"""

from __future__ import annotations

import runpy
import sys

import torch
import torch.distributed as dist

import medley.trainer  # noqa: F401
import medley_extras.profile  # noqa: F401
from testbed.ready import ready

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.argv = sys.argv[1:]
    ready()
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    finally:
        # While the interpreter ends, the threads of a group that is left to it may end the process.
        if dist.is_initialized():
            dist.destroy_process_group()
