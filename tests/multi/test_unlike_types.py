"""A bf16 process and an f16 process train like threads, and skip the same step."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
import unlike_types
from test_processes import TORCHRUN, run

pytestmark = [pytest.mark.multi, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the files written by one start of two processes."""
    path = tmp_path_factory.mktemp("types")
    done = run([*TORCHRUN, "--nproc-per-node=2", str(Path(unlike_types.__file__)), str(path)])
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("kind", unlike_types.KINDS)
def test_two_types_in_two_processes(kind: str, folder: Path) -> None:
    want = unlike_types.train(kind, True)
    # It doubles after two good steps, and halves with the third, which overflows.
    assert want.scales == [256, 512, 256, 256]
    assert [math.isfinite(norm) for norm in want.norms] == [True, True, False, True]
    for rank in range(2):
        got = unlike_types.Seen(**torch.load(folder / f"{kind}.{rank}.pt"))
        assert got.scales == want.scales
        for a, b in zip([*got.losses, *got.norms], [*want.losses, *want.norms], strict=True):
            assert a == b or not math.isfinite(b)
        assert got.parameters.keys() == want.parameters.keys()
        for name, tensor in want.parameters.items():
            assert torch.equal(got.parameters[name], tensor), name
        for name, tensor in want.gradients.items():
            assert torch.equal(got.gradients[name], tensor), name
