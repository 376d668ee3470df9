"""The check of private members, import circles and large classes finds each of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import check_python
import medley

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
API = "# API\n\n### plan\n\n### medley.cluster.load_cluster\n\n### medley.run.job.current\n"
CROSSED = {
    "an import of a package above": (
        {"medley/a": "def f():\n    from medley_extras.fits import Answer\n    return Answer"},
        "python/medley/a.py:2: medley_extras: Medley may not know",
    ),
    "an import of it for types": (
        {"medley/a": "if TYPE_CHECKING:\n    import medley_extras.fits"},
        "python/medley/a.py:2: medley_extras: Medley may not know",
    ),
    "an import of it by name": (
        {"medley/a": "import importlib\nimportlib.import_module('medley_extras.fits')"},
        "python/medley/a.py:2: medley_extras: Medley may not know",
    ),
    "a function that is not public": (
        {"medley_extras/a": "from medley.cluster import text_of"},
        "python/medley_extras/a.py:1: medley.cluster.text_of: not in docs/api.md",
    ),
    "a private module": (
        {"medley_extras/a": "def f():\n    from medley import _core\n    return _core"},
        "python/medley_extras/a.py:2: medley._core: not in docs/api.md",
    ),
    "a member of a module": (
        {"medley_extras/a": "from medley.run import job\njob.keep_port(1)"},
        "python/medley_extras/a.py:2: medley.run.job.keep_port: not in docs/api.md",
    ),
    "a member of the package": (
        {"medley_extras/a": "import medley\nmedley.engine.Engine"},
        "python/medley_extras/a.py:2: medley.engine.Engine: not in docs/api.md",
    ),
    "a private member of a base": (
        {
            "medley/a": "class A:\n    def __init__(self): self._n = 1",
            "medley_extras/a": "class B(medley.A):\n    def f(self): return self._n",
        },
        "python/medley_extras/a.py:2: self._n: a private member of Medley",
    ),
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
    (tmp_path / "python" / "medley_extras").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "api.md").write_text(API)
    monkeypatch.setattr(check_python, "ROOT", tmp_path)
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text + "\n")


@pytest.mark.parametrize("case", CASES)
def test_errors_are_named(package: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    files, sentence = CASES[case]
    write(package, files)
    assert check_python.main() == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert sentence in line


@pytest.mark.parametrize("case", CROSSED)
def test_names_do_not_cross_the_public_api(
    package: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    files, sentence = CROSSED[case]
    write(package.parent, files)
    assert check_python.main() == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert sentence in line


def test_public_names_may_be_imported(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uses = (
        "import medley\nfrom medley.cluster import load_cluster\nfrom medley.run import job\n"
        "medley.plan(job.current(), medley.__file__)\nmedley.cluster.load_cluster('c')"
    )
    looks_up = "import importlib\nimportlib.import_module('medley_extras.table')"
    write(package.parent, {"medley_extras/a": uses, "medley/extras": looks_up})
    assert check_python.main() == 0, capsys.readouterr().out


def test_medley_runs_without_the_packages_above(tmp_path: Path) -> None:
    """Imports every module of Medley where `medley_extras` is not installed."""
    package = Path(medley.__file__).parent
    (tmp_path / "medley").symlink_to(package)
    program = (
        "import importlib, pkgutil, sys\n"
        f"sys.path = [{str(tmp_path)!r}, *(p for p in sys.path if p != {str(package.parent)!r})]\n"
        "import medley\n"
        "assert importlib.util.find_spec('medley_extras') is None\n"
        "for each in pkgutil.walk_packages(medley.__path__, 'medley.'):\n"
        "    if not each.name.endswith(('__main__', 'start_device', '_testing')):\n"
        "        importlib.import_module(each.name)\n"
        "from medley import extras\n"
        "assert extras.tempo() is None\n"
        "from medley.cli import run\n"
        "run(['--help'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    verbs = re.findall(r"^  (\w+)  ", done.stdout, re.M)
    assert {"capture", "plan", "launch"} <= set(verbs)
    assert not {"report", "fits", "doctor", "demo", "train"} & set(verbs)


def test_correct_files_pass(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(package, {**RIGHT, "own": f"{RIGHT['own']}\nimport medley.types"})
    assert check_python.main() == 0
    assert capsys.readouterr().out == ""
