"""Messages of other nodes to the first node of a run."""

from __future__ import annotations

import json
import types

from medley._core import Agreement
from medley.run import elastic
from medley.run.epochs import PREFIX
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
def test_what_has_ended_before_a_node_came_back_is_not_heard() -> None:
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
def test_who_waits_to_be_taken_in_sees_any_number_of_epochs_pass() -> None:
    store, epochs = Store(), 3000
    for epoch in range(1, epochs + 1):
        members = ["a/0/0", "a/1/0"] if epoch == epochs else ["a/0/0"]
        agreement = Agreement((epoch, members, dict.fromkeys(members, -1), -1, None, {}, []))
        store.set(f"{PREFIX}{epoch}/agreement", json.dumps(agreement.told))
    waits = types.SimpleNamespace(
        name="a/1/0", store=store, epoch=0, is_new=True, _check_run=lambda: None
    )
    waits.key = types.MethodType(elastic.Member.key, waits)
    waits.next_agreement = types.MethodType(elastic.Member.next_agreement, waits)
    assert waits.next_agreement().epoch == epochs
