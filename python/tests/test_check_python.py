"""The check of private members, import circles and large classes finds each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import check_python

LARGE = "\n".join(f"    def m{number}(self): ..." for number in range(31))
CASES = {
    "a member": (
        {"a": "class A:\n    def _m(self): ...", "b": "def f(x): return x._m"},
        "b.py:1: x._m: a private member",
    ),
    "an attribute": (
        {"a": "class A:\n    def __init__(self): self._n = 1\nclass B:\n    def f(self, a): a._n"},
        "a.py:4: a._n: a private member",
    ),
    "a function": ({"a": "def _f(): ...", "b": "import a\na._f()"}, "b.py:2: a._f: a private"),
    "a lazy circle": (
        {"a": "import medley.b", "b": "def f():\n    from medley import a\n    return a"},
        "import circle: medley.a, medley.b",
    ),
    "methods": ({"a": f"class A:\n{LARGE}"}, "a.py:1: A has 31 methods, at most 30"),
}
RIGHT = {
    "own": "class A:\n    def _m(self, other: A):\n        return self._m(other) or other._m(self)",
    "base": "class B:\n    def _n(self): ...\nclass C(B):\n    def f(self): return super()._n()",
    "types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import medley.own",
    "torch": "import torch\ntorch._m()\nclass D:\n    def f(self, module): return module._buffers",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of a package that is checked."""
    folder = tmp_path / "python" / "medley"
    folder.mkdir(parents=True)
    monkeypatch.setattr(check_python, "ROOT", tmp_path)
    monkeypatch.setattr(check_python, "PACKAGE", folder)
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text + "\n")


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named(
    package: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    files, sentence = CASES[case]
    write(package, files)
    assert check_python.main() == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert sentence in line


def test_what_is_right_passes(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(package, {**RIGHT, "own": f"{RIGHT['own']}\nimport medley.types"})
    assert check_python.main() == 0
    assert capsys.readouterr().out == ""
