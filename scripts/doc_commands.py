"""Runs the commands of the documentation: README.md and docs/**/*.md.

    ```yaml cluster.yaml         a fence that names a file is that file for the commands of the page
    ```console                   commands; the lines below each are its output, standard error too
    $ medley check cluster.yaml
    cluster.yaml  cluster of 4 devices
    ```

A line that ends in a backslash continues a command. It must end with status 0, or with N if a line
`# exits with N` follows it. A line `...` in the output stands for any lines. A command without
output may print anything. The fences of a page share a temporary directory, with links to `data`,
`docs`, `examples` and `tests` of the repository. Other fences are not run. There is no shell.
--update rewrites the outputs.
"""

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import warm_start

ROOT = Path(__file__).resolve().parent.parent
LINKS = ["data", "docs", "examples", "tests"]
TIME_LIMIT_S = 660  # between that of an exchange, which names its cause, and that of a test
# Imports of the pages' programs that capture, and of those with models of transformers.
IMPORTED = ("torch._functorch.aot_autograd", "transformers.models.llama.modeling_llama", "peft")
DIFF_LINES = 60
EXITS = re.compile(r"# exits with (\d+)$")
# A file name may contain no quote, so that a fence's other options do not match.
FENCE = re.compile(r"^```(\w+)(?: ([\w.\-]+\.\w+))?$")


def run_command(line: str, directory: Path) -> tuple[int, list[str]]:
    words = shlex.split(line)
    if words[0] == "medley":
        words[:1] = [sys.executable, "-m", "medley"]
    elif words[0] == "python":
        words[0] = sys.executable
    elif words[0] == "torchrun":
        words[:1] = [sys.executable, "-m", "torch.distributed.run"]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.environ.get("PYTHONPATH") or str(ROOT / "python"),
    }
    try:
        done = subprocess.run(
            warm_start.command(words, IMPORTED),
            cwd=directory,
            env=env,
            text=True,
            errors="replace",
            timeout=TIME_LIMIT_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"").decode(errors="replace").splitlines()
        return -1, [*printed, f"(no end after {TIME_LIMIT_S} s)"]
    except FileNotFoundError:
        return -1, [f"(no such program: {words[0]})"]
    return done.returncode, [text.rstrip() for text in done.stdout.splitlines()]


def matches(expected: list[str], actual: list[str]) -> bool:
    """Whether the lines are those expected, `...` standing for any number of any lines."""
    if not expected:
        return not actual
    if expected[0] == "...":
        return any(matches(expected[1:], actual[skip:]) for skip in range(len(actual) + 1))
    return bool(actual) and actual[0] == expected[0] and matches(expected[1:], actual[1:])


def rewritten(expected: list[str], actual: list[str]) -> list[str]:
    """Returns the actual output without the lines that the page leaves out. It keeps as many lines
    before the first `...` and after the last one as the page has; the lines between two of them
    stay."""
    if "..." not in expected:
        return actual
    first = expected.index("...")
    last = len(expected) - 1 - expected[::-1].index("...")
    tail = len(expected) - 1 - last
    return actual[:first] + expected[first : last + 1] + (actual[-tail:] if tail else [])


class Page:
    """The commands of a page, run in order."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.path = path
        self.directory = directory
        self.lines: list[str] = []  # the page as it should be
        self.problems: list[str] = []
        self.num_commands = 0

    def run(self) -> None:
        for link in LINKS:
            if (ROOT / link).exists():
                (self.directory / link).symlink_to(ROOT / link)
        source = self.path.read_text().splitlines()
        i = 0
        while i < len(source):
            self.lines.append(source[i])
            fence = FENCE.match(source[i])
            i += 1
            if not fence:
                continue
            end = i + source[i:].index("```")
            body = source[i:end]
            if fence[2]:
                (self.directory / fence[2]).write_text("\n".join(body) + "\n")
            if fence[1] == "console":
                self.run_fence(body, i + 1)
            else:
                self.lines += body
            i = end

    def run_fence(self, body: list[str], number: int) -> None:
        starts = [k for k, line in enumerate(body) if line.startswith("$ ")] + [len(body)]
        self.lines += body[: starts[0]]
        for start, stop in zip(starts, starts[1:], strict=False):
            end = start + 1
            while body[end - 1].endswith("\\"):
                end += 1
            self.run_entry(body[start:end], body[end:stop], number + start)

    def run_entry(self, typed: list[str], below: list[str], number: int) -> None:
        self.num_commands += 1
        command = " ".join(line.removesuffix("\\").strip() for line in typed)
        notes = [line for line in below if EXITS.match(line)]
        expected = [line for line in below if line not in notes]
        blank = 0  # lines between two commands belong to neither
        while expected and not expected[-1]:
            expected.pop()
            blank += 1
        status = int(EXITS.match(notes[0])[1]) if notes else 0  # type: ignore[index]
        code, actual = run_command(command[2:], self.directory)
        while actual and not actual[-1]:
            actual.pop()
        place = f"{self.path.relative_to(ROOT)}:{number}: {command}"
        if code != status:
            found = "\n".join(actual[-20:])
            self.problems.append(f"{place}\nfound status {code}, expected {status}:\n{found}")
        elif expected and not matches(expected, actual):
            diff = difflib.unified_diff(expected, actual, "page", "now", lineterm="", n=1)
            self.problems.append("\n".join([place, *list(diff)[:DIFF_LINES]]))
        self.lines += [*typed, *(rewritten(expected, actual) if expected else [])]
        self.lines += notes + [""] * blank


def run_page(path: Path) -> Page:
    with tempfile.TemporaryDirectory(prefix="medley_docs_") as name:
        page = Page(path, Path(name))
        page.run()
        return page


def pages() -> list[Path]:
    """Returns the pages that have commands."""
    found = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [path for path in found if path.exists() and "```console" in path.read_text()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path, help="default: all")
    parser.add_argument("--update", action="store_true", help="rewrite the outputs")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()

    paths = [path.resolve() for path in args.pages] or pages()
    problems = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for path, page in zip(paths, pool.map(run_page, paths), strict=True):
            problems += len(page.problems)
            print(f"{path.relative_to(ROOT)}: {page.num_commands} commands")
            print("\n".join(page.problems), end="\n" if page.problems else "")
            if args.update and page.problems:
                path.write_text("\n".join(page.lines) + "\n")
    return int(problems > 0)


if __name__ == "__main__":
    sys.exit(main())
