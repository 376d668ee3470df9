"""Detects processes that read different data for the same rows: each shuffles and draws random
values on its own."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from medley.data.row_dim import RowDim

_MOST_ROWS = 64  # compared rows: the first ones of a batch
NOTHING = "[{}, {}]"  # text of a process that has published nothing
Reads = Sequence[tuple[str, Sequence[tuple[int, int]]]]  # (first, number) of rows by name


def fingerprint(
    tensors: Mapping[str, tuple[Tensor, RowDim]], rows: Sequence[int], reads: Reads
) -> str:
    """Returns the text that a process publishes: the checksums of its rows of each tensor, and the
    rows that its device reads."""
    places = {row: place for place, row in enumerate(rows) if row < _MOST_ROWS}
    found = {}
    for name, (tensor, dim) in tensors.items():
        if dim.size(tensor) != dim.elements * len(rows):
            continue
        parts = {row: _checksum(dim.part(tensor, place, 1)) for row, place in places.items()}
        others = [size for each, size in enumerate(tensor.shape) if each != dim.dim]
        found[name] = [others, parts]
    return json.dumps([found, {name: _counted(several) for name, several in reads}])


def difference(texts: Sequence[str]) -> str:
    """Returns a row whose parts are computed from different data, or "". `texts` are those of all
    processes. Batches of different lengths are not compared, because padding differs."""
    digests = [json.loads(text) for text in texts]
    rows = {row for found, _ in digests for _, parts in found.values() for row in parts}
    for row in sorted(rows, key=int):
        having = [
            {name: (shape, parts[row]) for name, (shape, parts) in found.items() if row in parts}
            for found, _ in digests
        ]
        used: dict[str, list[int]] = {}
        for process, (_, reads) in enumerate(digests):
            for name in having[process]:
                if int(row) in reads.get(name, ()):
                    used.setdefault(name, []).append(process)
        if found := _unlike(having, used):
            return f"row {row}: {found}"
    return ""


def _unlike(
    having: Sequence[Mapping[str, tuple[list[int], int]]], used: Mapping[str, Sequence[int]]
) -> str:
    """Returns the name of a tensor that differs, or "". `having`: shapes and checksums of a row by
    process. `used`: the processes that read it, by name."""
    for name in used:
        shapes = [each[name][0] for each in having if name in each]
        if any(shape != shapes[0] for shape in shapes):
            return ""
    taken = {}
    for name, (first, *others) in used.items():
        taken[name] = having[first][name]
        for other in others:
            if having[other][name] != taken[name]:
                return f'found other values of "{name}" in process {other} than in {first}'
    if any(all(each.get(name) == value for name, value in taken.items()) for each in having):
        return ""
    names = " and ".join(f'"{name}" of process {used[name][0]}' for name in list(taken)[:2])
    return f"found {names}, which do not belong together"


def _counted(several: Sequence[tuple[int, int]]) -> list[int]:
    return [row for first, count in several for row in range(first, min(first + count, _MOST_ROWS))]


def _checksum(part: Tensor) -> int:
    flat = part.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data)
