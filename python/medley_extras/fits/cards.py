"""GPUs by the names of users, "3090", "2x3090", "rtx 4060ti 16gb", and the cluster of them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence

from medley import Cluster
from medley.cluster import kinds_meant, near_kinds, parse_cluster

_COUNTED = re.compile(r"(\d+)\s*[x*]\s*(?=\D*\d)(.+)", re.IGNORECASE)
_MOST = 64


@dataclasses.dataclass(frozen=True)
class Cards:
    """A number of GPUs of a type of the catalogue. `note`: the ambiguity of the name."""

    kind: str
    count: int
    note: str = ""


def read_cards(words: Sequence[str]) -> list[Cards]:
    """Returns the types of the words, each once. Among types that differ only in memory it takes
    the smallest. Raises ValueError for a word without a type."""
    counts: dict[str, int] = {}
    notes: dict[str, str] = {}
    for word in words:
        found = _COUNTED.fullmatch(word.strip())
        count, name = (int(found[1]), found[2]) if found else (1, word.strip())
        if not 0 < count <= _MOST:
            raise ValueError(f"--cards: {word}: found {count} cards, expected 1 to {_MOST}")
        kind, note = _kind(word, name)
        counts[kind] = counts.get(kind, 0) + count
        notes[kind] = notes.get(kind, "") or note
    if sum(counts.values()) > _MOST:
        raise ValueError(f"--cards: found {sum(counts.values())}, expected {_MOST} at most")
    return [Cards(kind, count, notes[kind]) for kind, count in counts.items()]


def _kind(word: str, name: str) -> tuple[str, str]:
    meant = kinds_meant(name)
    if not meant:
        near = near_kinds(name)
        known = f"near: {', '.join(near)}; " if near else ""
        raise ValueError(f"--cards: {word}: no such card ({known}`medley list devices` shows all)")
    if len(meant) == 1:
        return meant[0], ""
    if len({kind.rpartition("-")[0] for kind in meant}) > 1:
        raise ValueError(f"--cards: {word}: may be any of {', '.join(meant)}, say which")
    first, *others = sorted(meant, key=lambda kind: int(re.findall(r"(\d+)GB", kind)[-1]))
    return first, f"{name} is taken as {first}; write {' or '.join(others)} for the other"


def cluster_of(cards: Sequence[Cards], link: str) -> Cluster:
    """Returns these GPUs as a cluster. Each pair communicates at `link`, a bandwidth such as "16
    GB/s"."""
    return parse_cluster(cluster_text(cards, link), "--link")


def cluster_text(cards: Sequence[Cards], link: str) -> str:
    """Returns the file of this cluster."""
    nodes = [
        {"name": each.kind, "count": each.count, "device": each.kind, "devices_per_node": 1}
        for each in cards
    ]
    entries = {
        "format": "medley-cluster",
        "version": 1,
        "nodes": nodes,
        "networks": [
            {
                "name": "link",
                "connects": [each.kind for each in cards],
                "bandwidth": link,
                "latency": "20 us",
            }
        ],
    }
    return json.dumps(entries)


def link_of(cards: Sequence[Cards]) -> str:
    """Returns the bandwidth of the slowest of these GPUs to its neighbours, from the catalogue."""
    links = [cluster_of([each], "1 GB/s").kind(0).link for each in cards]
    known = [link for link in links if link]
    return f"{min(known) / 1e9:g} GB/s" if known else "8 GB/s"
