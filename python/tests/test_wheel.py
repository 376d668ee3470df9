"""The result of pip for this checkout: pyproject.toml compared with its package."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import medley

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_command_is_an_entry_point() -> None:
    module, function = PROJECT["project"]["scripts"]["medley"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_version_is_that_of_the_package() -> None:
    # The provider's default expression (scikit_build_core.metadata.regex), in short.
    version = PROJECT["tool"]["scikit-build"]["metadata"]["version"]
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / version["input"]).read_text(), re.M)
    assert found is not None
    assert found[1] == medley.__version__


def test_dependencies_are_what_the_tests_run_with() -> None:
    groups = [PROJECT["project"]["dependencies"]]
    groups += PROJECT["project"]["optional-dependencies"].values()
    for requirement in (text for group in groups for text in group):
        name, least = requirement.split(">=")
        found = importlib.metadata.version(name).split("+")[0]
        assert [int(part) for part in found.split(".")] >= [int(part) for part in least.split(".")]


def test_build_has_the_pins_of_the_environment() -> None:
    pins = dict(
        line.split("==")
        for file in ROOT.glob("requirements*.txt")
        for line in file.read_text().splitlines()
        if "==" in line
    )
    pinned = {name.replace("-", "_"): version for name, version in pins.items()}
    exact = [text.split("==") for text in PROJECT["build-system"]["requires"] if "==" in text]
    assert exact
    for name, version in exact:
        assert pinned[name.replace("-", "_")] == version, name


def test_installed_package_finds_its_catalogue(tmp_path: Path) -> None:
    """Installs the package as cmake/wheel.cmake does, and imports it from another folder."""
    package = Path(medley.__file__).parent
    shutil.copytree(package, tmp_path / "medley", ignore=shutil.ignore_patterns("__pycache__"))
    rule = re.search(
        r"install\(DIRECTORY data/devices DESTINATION (\S+)",
        (ROOT / "cmake/wheel.cmake").read_text(),
    )
    assert rule is not None
    shutil.copytree(ROOT / "data" / "devices", tmp_path / rule[1] / "devices")
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from medley.cluster import catalogue; "
        "print(json.dumps([str(catalogue()), sorted(file.stem for file in catalogue().iterdir())]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    folder, names = json.loads(done.stdout)
    assert Path(folder) == tmp_path / "medley" / "data" / "devices"
    assert "CPU" in names
