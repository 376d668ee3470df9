"""Clusters by the name of their file, with the device catalogue of Medley."""

from __future__ import annotations

import os
from pathlib import Path

from medley import _core
from medley._core import Cluster as Cluster
from medley.files import read_text

_texts: dict[str, str] = {}  # by hash


def catalogue() -> Path:
    """Returns the folder of the device catalogue."""
    here = Path(__file__).resolve()
    for folder in (here.parents[2] / "data" / "devices", here.parent / "data" / "devices"):
        if folder.is_dir():
            return folder
    raise OSError(f"the device catalogue is missing: {here.parents[2] / 'data' / 'devices'}")


def load_cluster(cluster: Cluster | str | os.PathLike[str]) -> Cluster:
    """Returns the cluster that a file describes; a Cluster is returned as it is."""
    if isinstance(cluster, Cluster):
        return cluster
    if not isinstance(cluster, (str, os.PathLike)):
        raise ValueError(
            f"cluster: found {type(cluster).__name__}, expected the path of a cluster.yaml"
        )
    return parse_cluster(read_text(cluster), str(cluster))


def parse_cluster(text: str, file: str = "<text>") -> Cluster:
    """Returns the cluster that a text describes; `file` is for error messages."""
    cluster = Cluster.parse_text(text, file, catalogue())
    _texts[cluster.hash] = text
    return cluster


def text_of(cluster: Cluster) -> str | None:
    """Returns a text that describes a cluster if this process has read one, else None."""
    return _texts.get(cluster.hash)


def one_device(kind: str) -> str:
    """Returns the cluster.yaml of one device of a type of the catalogue."""
    return (
        "format: medley-cluster\nversion: 1\n"
        f"nodes:\n  - {{name: a, count: 1, device: {kind}, devices_per_node: 1}}\n"
    )


def kinds_meant(name: str) -> list[str]:
    """Returns the device types of the catalogue that match a name written by a user or a driver."""
    return _core.kinds_meant(name, catalogue())


def near_kinds(name: str) -> list[str]:
    """Returns the device types of the catalogue with names similar to this unknown one."""
    return _core.near_kinds(name, catalogue())
