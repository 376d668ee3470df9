"""Checkpoints of torch.distributed.checkpoint, written by PyTorch and read without unpickling.

Their `.metadata` is a pickle, which may run any code. Only descriptions of tensors are made from
it; every other name in it is an error.
"""

from __future__ import annotations

import importlib
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import metadata as described
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

_METADATA_FILE = ".metadata"
_METADATA = "torch.distributed.checkpoint.metadata"
_KNOWN = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *((_METADATA, name) for name in ("TensorStorageMetadata", "BytesStorageMetadata")),
    *((_METADATA, name) for name in ("ChunkStorageMetadata", "TensorProperties")),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
}
_MODEL = "model."


class _Reader(pickle.Unpickler):
    """Unpickles descriptions of tensors only."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns the class of a name. Raises UnpicklingError for a name that is not allowed."""
        found = None
        if (
            module == "torch"
            and "." not in name
            and isinstance(getattr(torch, name, 0), torch.dtype)
        ):
            found = getattr(torch, name)
        elif (module, name) == ("builtins", "getattr"):
            found = _memory_format
        elif (module, name) in _KNOWN:
            found = getattr(importlib.import_module(module), name)
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return found


def _memory_format(kind: Any, name: Any) -> Any:
    """Returns a member of an enumeration, which Python 3.11.0 to 3.11.3 pickle as an attribute.
    Raises UnpicklingError for any other attribute."""
    if kind is not described._MEM_FORMAT_ENCODING or name not in kind.__members__:
        raise pickle.UnpicklingError("builtins.getattr")
    return kind[name]


class _Storage(FileSystemReader):
    """Reads a folder, with its description from `_Reader`."""

    def __init__(self, folder: Path, metadata: described.Metadata) -> None:
        super().__init__(folder)
        self._described = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> described.Metadata:
        """Returns the metadata that was read before."""
        return self._described


def is_dcp(folder: Path) -> bool:
    """Returns whether a folder was written by torch.distributed.checkpoint."""
    return (folder / _METADATA_FILE).is_file()


def read(folder: Path) -> dict[str, Tensor]:
    """Returns the tensors of the model: those called "model.<name>" by their names, or all if there
    are none. Raises ValueError naming an invalid file."""
    found = _read_metadata(folder)
    tensors = {
        name: entry
        for name, entry in found.state_dict_metadata.items()
        if isinstance(entry, described.TensorStorageMetadata)
    }
    if any(name.startswith(_MODEL) for name in tensors):
        tensors = {name: entry for name, entry in tensors.items() if name.startswith(_MODEL)}
    wanted = sum(math.prod(e.size) * e.properties.dtype.itemsize for e in tensors.values())
    files = [file for file in folder.iterdir() if file.is_file() and file.name != _METADATA_FILE]
    there = sum(file.stat().st_size for file in files)
    if wanted > there:
        raise ValueError(f"{folder}: found {there} bytes in its files, expected at least {wanted}")
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in tensors.items()
    }
    try:
        load(state, storage_reader=_Storage(folder, found), no_dist=True)
    except Exception as error:
        sentence = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{folder}: cannot be read: {sentence}") from None
    return {name.removeprefix(_MODEL): value for name, value in state.items()}


def _read_metadata(folder: Path) -> described.Metadata:
    path = folder / _METADATA_FILE
    try:
        with open(path, "rb") as file:
            found: Any = _Reader(file).load()
        inside = isinstance(found, described.Metadata) and all(
            Path(place.relative_path).name == place.relative_path
            for place in found.storage_data.values()
        )
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path}: found {error}, expected only what describes tensors") from None
    except Exception as error:  # bytes that are no pickle raise any error
        raise ValueError(f"{path}: cannot be read: {type(error).__name__}") from None
    if not inside:
        raise ValueError(f"{path}: expected the description of tensors in files of this folder")
    if found.storage_meta is None:
        found.storage_meta = described.StorageMeta()
    metadata: described.Metadata = found
    return metadata


def write(folder: Path, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Writes weights by name, and the optimizer state by "<moment>:<parameter>", with the names of
    `torch.distributed.checkpoint.state_dict.get_state_dict`."""
    moments: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        moment, _, parameter = name.partition(":")
        if not parameter:  # the loss scale belongs to the run
            continue
        moments.setdefault(parameter, {})[moment] = value
    save({"model": dict(weights), "optim": {"state": moments}}, checkpoint_id=folder, no_dist=True)
