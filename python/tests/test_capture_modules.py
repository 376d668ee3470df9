"""Detection of Python modules with a function that capture replaces. Most are searched only
once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from torch.nn.utils import rnn

from medley.capture.modules import holders

NAME = "pack_padded_sequence"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Returns a module of the user or of a notebook: no file of an installed package."""
    module = ModuleType("own_model")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_an_own_module_may_import_the_name_at_any_time(own: ModuleType) -> None:
    assert own not in holders(NAME)
    assert rnn in holders(NAME)
    vars(own)[NAME] = rnn.pack_padded_sequence
    assert own in holders(NAME)
    del vars(own)[NAME]
    assert own not in holders(NAME)


def test_an_installed_module_is_found_once_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("installed_model")
    module.__file__ = str(Path(rnn.__file__).with_name("installed_model.py"))
    vars(module)[NAME] = rnn.pack_padded_sequence
    assert module not in holders(NAME)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert module in holders(NAME)
