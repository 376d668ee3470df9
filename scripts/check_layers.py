"""Fails if a file under medley/ includes a module that its CMakeLists.txt does not name. The file
names linked modules in DEPS, and those with only headers in HEADERS. A module with TORCH may
include PyTorch, and only such modules may depend on it. Modules above the command line are known to
the module with their table. Dependencies form no circle. Also fails if Python reads an environment
variable outside the two allowed files."""

import graphlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTING = "testing"
ABOVE = {"goal", "next_best"}  # the command line
TABLE = "command"
# The variables of a job; the cache of a user.
READ_ENVIRONMENT = {"python/medley/run/job.py", "python/medley_extras/recall/store.py"}


def declaration(module: Path) -> str:
    text = (module / "CMakeLists.txt").read_text()
    call = re.search(r"medley_module\(\s*(\w+)([^)]*)\)", text)
    if not call or call[1] != module.name:
        sys.exit(f"{module}/CMakeLists.txt: expected medley_module({module.name} ...)")
    return call[2]


def torch_modules() -> set[str]:
    folders = (path.parent for path in ROOT.glob("medley/*/CMakeLists.txt"))
    return {each.name for each in folders if re.search(r"\bTORCH\b", declaration(each))}


def declared_deps(module: Path, key: str) -> set[str]:
    ends = r"(?=\bDEPS\b|\bHEADERS\b|\bLIBS\b|\bPROGRAM\b|\bTEST_DEPS\b|\bTEST_LIBS\b|$)"
    deps = re.search(rf"\b{key}\b([\w\s]*?){ends}", declaration(module))
    return set(deps[1].split()) if deps else set()


def main() -> int:
    errors = []
    with_torch = torch_modules()
    dependencies: dict[str, set[str]] = {}
    for module in sorted(p.parent for p in ROOT.glob("medley/*/CMakeLists.txt")):
        allowed = declared_deps(module, "DEPS") | declared_deps(module, "HEADERS") | {module.name}
        dependencies[module.name] = allowed - {module.name}
        if TESTING in allowed - {module.name}:
            errors.append(f"{module.relative_to(ROOT)}: only tests may depend on '{TESTING}'")
        if module.name != TABLE and (known := ABOVE & allowed - {module.name}):
            errors.append(
                f"{module.relative_to(ROOT)}: only '{TABLE}' may depend on '{min(known)}'"
            )
        for name in sorted(allowed & with_torch) if module.name not in with_torch else ():
            errors.append(f"{module.relative_to(ROOT)}: only TORCH modules may depend on '{name}'")
        for_tests = allowed | declared_deps(module, "TEST_DEPS")
        for file in sorted(module.glob("*.[ch]*")):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                where = f"{file.relative_to(ROOT)}:{number}"
                may = for_tests if file.name.endswith("_test.cpp") else allowed
                if (m := re.match(r'#include "medley/(\w+)/', line)) and m[1] not in may:
                    errors.append(f"{where}: '{module.name}' may not include '{m[1]}'")
                if re.match(r"#include <(torch|ATen|c10)/", line) and module.name not in with_torch:
                    errors.append(f"{where}: only TORCH modules may include torch")
    try:
        graphlib.TopologicalSorter(dependencies).prepare()
    except graphlib.CycleError as circle:
        errors.append(f"medley: found a circle of modules: {' <- '.join(circle.args[1])}")
    for file in sorted(ROOT.glob("python/medley*/**/*.py")):
        name = str(file.relative_to(ROOT))
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if name not in READ_ENVIRONMENT and re.search(
                r"os\.(getenv|environ(\.|\[))|in os\.environ", line
            ):
                errors.append(f"{name}:{number}: only medley/run/job.py reads the environment")
    for error in errors:
        print(error)
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
