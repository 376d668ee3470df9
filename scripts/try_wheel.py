#!/usr/bin/env python3
"""Tries the wheel of `make wheel` in an environment with only PyTorch.

    scripts/try_wheel.py [dist/medley-*.whl]

Makes an environment with PyTorch, installs the wheel, and runs the demo and two verbs outside of
this checkout, without a compiler on the path. Fails if the demo takes longer than a minute, or if
Medley loads a library outside the environment, Python and the C and C++ run-time libraries.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO_SECONDS = 60
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", nargs="?")
    wheel = parser.parse_args().wheel or str(max(ROOT.glob("dist/medley-*.whl"), default=""))
    if not wheel:
        sys.exit("try_wheel: dist has no wheel: run `make wheel`")
    torch = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"],
        text=True,
        capture_output=True,
        check=True,
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        venv = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--no-compile"]
        subprocess.run([*pip, f"torch=={torch}"], check=True, env=dict(os.environ))
        started = time.monotonic()
        subprocess.run([*pip, str(Path(wheel).resolve())], check=True)
        print(f"installed in {time.monotonic() - started:.0f} s", flush=True)
        bare = str(venv / "bin")
        python = str(venv / "bin" / "python")
        package = venv / "lib" / f"python3.{sys.version_info[1]}" / "site-packages" / "medley"
        started = time.monotonic()
        run([python, "-m", "medley", "demo"], folder, bare, show=True)
        took = time.monotonic() - started
        run(
            [python, "-m", "medley", "capture", "medley_extras.models:mlp", "-o", "g.graph"],
            folder,
            bare,
        )
        run([python, "-m", "medley", "list", "strategies"], folder, bare)
        run([python, "-m", "medley", "doctor"], folder, bare, show=True)
        ours = [*package.glob("*.so"), package / "bin" / "medley"]
        carried = list(package.with_name("medley.libs").iterdir())
        strange = [text for file in ours + carried for text in from_elsewhere(file, venv)]
        if strange:
            sys.exit("try_wheel: found libraries of this machine: " + "; ".join(strange))
        print(f"the demo took {took:.0f} s; {Path(wheel).name} needs nothing of this machine")
        if took > DEMO_SECONDS:
            sys.exit(f"try_wheel: the demo took {took:.0f} s, expected at most {DEMO_SECONDS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
