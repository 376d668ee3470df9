"""Global batches of an elastic run that may be needed again, as the script gave them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

MOST_BYTES = 1 << 30


class Batches:
    """By step, copies, since a script may use its memory again. Of more than `most_bytes` the
    oldest are dropped, but never the last two: a step that was under way is always made again."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._batches: dict[int, Any] = {}
        self._bytes = 0

    def keep(self, step: int, batch: Any, oldest: int) -> None:
        """Adds the batch of a step that comes after all others; drops those before `oldest`."""
        self._batches[step] = _copy(batch)
        self._bytes += _bytes_of(batch)
        for each in sorted(self._batches)[:-2]:
            if each >= oldest and self._bytes <= self._most_bytes:
                break
            self._bytes -= _bytes_of(self._batches.pop(each))

    def forget(self) -> None:
        """No step so far is made again."""
        self._batches, self._bytes = {}, 0

    def require(self, steps: range, what: str) -> None:
        """Raises ValueError if what the script has given for one of these is there no more."""
        if lacking := [step for step in steps if step not in self]:
            raise ValueError(
                f"{what}: the next step is {steps.start}, and the batches of steps {lacking[0]} to "
                f"{lacking[-1]} are not kept: expected at most {self._most_bytes >> 20} MiB"
            )

    def __contains__(self, step: int) -> bool:
        return step in self._batches

    def __getitem__(self, step: int) -> Any:
        return self._batches[step]


def _copy(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.detach().clone()
    if isinstance(batch, Mapping):
        return {name: _copy(value) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return [_copy(value) for value in batch]
    return batch


def _bytes_of(batch: Any) -> int:
    if isinstance(batch, Tensor):
        return batch.nbytes
    if isinstance(batch, Mapping):
        return sum(map(_bytes_of, batch.values()))
    return sum(map(_bytes_of, batch)) if isinstance(batch, (tuple, list)) else 0
