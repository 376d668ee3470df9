"""Messages of other nodes to the first node of a run."""

from __future__ import annotations

import json
import types

from medley._core import Agreement
from medley.run import elastic
from medley.run.generations import PREFIX
from medley.run.nodes import Node


class Store:
    """A store of this process alone."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        return self.values.get(key)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value


def node(store: Store) -> Node:
    return Node(store, 1, ["a/1/0"])  # type: ignore[arg-type]


def test_ends_of_processes_are_heard_once() -> None:
    store = Store()
    one = node(store)
    assert one.look() == []
    store.set("node/1/ended", json.dumps([["a/1/0", -9]]))
    assert one.look() == [("a/1/0", -9)]
    assert one.look() == []


# The leader ignores a node that it considers lost. Ends before the restart of the command are no
# loss of the new processes.
def test_failures_before_a_node_came_back_are_ignored() -> None:
    store = Store()
    one = node(store)
    one.is_lost = True
    store.set("node/1/ended", json.dumps([["a/1/0", -9]]))
    store.set("node/1/comes", "2")
    assert one.comes_back()
    assert one.look() == []
    store.set("node/1/ended", json.dumps([["a/1/0", -9], ["a/1/0", -15]]))
    assert one.look() == [("a/1/0", -15)]


# It waits while a run loses and regains others for days.
def test_waiting_node_sees_any_number_of_generations_pass() -> None:
    store, generations = Store(), 3000
    for generation in range(1, generations + 1):
        members = ["a/0/0", "a/1/0"] if generation == generations else ["a/0/0"]
        agreement = Agreement((generation, members, dict.fromkeys(members, -1), -1, None, {}, []))
        store.set(f"{PREFIX}{generation}/agreement", json.dumps(agreement.fields))
    waits = types.SimpleNamespace(
        name="a/1/0", store=store, generation=0, is_new=True, _check_run=lambda: None
    )
    waits.key = types.MethodType(elastic.Member.key, waits)
    waits.next_agreement = types.MethodType(elastic.Member.next_agreement, waits)
    assert waits.next_agreement().generation == generations
