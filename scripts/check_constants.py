"""Lists the planner's tuned constants; --check fails if there are more than LIMIT. A constant is
tuned if another value would be equally correct but find other plans, or find them sooner. Constants
that follow from a format, a unit or the arithmetic are in FIXED, with the reason."""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES = ["synthesis", "chains", "candidates", "groups", "planner"]
LIMIT = 75
CONSTANT = re.compile(r"constexpr (?:size_t|u?int\w*|double|std::\w[\w:]*|\w+) (k[A-Z]\w*)\b[^;]*;")
MORE = re.compile(r"[,;] (k[A-Z]\w*) =")
FIXED = {  # name: why
    "kNever": "larger than every sum",
    "kNone": "no value",
    "kLongest": "what a sum of nanoseconds holds",
    "kLongestStep": "what a sum of nanoseconds holds",
    "kNoBound": "no value",
    "kMostCountedPools": "bits of a label",
    "kMostCountedDevices": "bits of a label",
    "kBits": "bits of a label",
    "kCount": "bits of a label",
    "kHighBits": "bits of a label",
    "kTicksPerNanosecond": "a unit",
    "kTicksPerSecond": "a unit",
    "kMostMicrobatches": "the limit of a request",
    "kLeastBytePrice": "the inverse of another",
    "kLeastPerRow": "so that one can divide by it",
    "kLeastSteps": "one step with copies and one without",
    "kMany": "what a number of amounts holds",
    "kPrecision": "of doubles",
    "kSafety": "of doubles",
    "kWhole": "a unit",
    "kKept": "a name",
    "kFine": "a name",
    "kAll": "a name",
    "kBlocks": "a name",
    "kMicrobatches": "a first, a usual and a last one",
    "kSteps": "a sum of others",
    "kMemoryPart": "a name",
    "kMemory": "a name",
    "kNamed": "how many a message names",
    "kExactDevices": "bits of a mask",
    "kBucketBytes": "PyTorch's own",
    "kInterleave": "two is the mode itself",
    "kParallelPeriods": "searches side by side",
    "kWholeBlocks": "the grids of Megatron-LM have them",
}


def names(text: str) -> list[tuple[int, str]]:
    """Returns (line, name) of each constant of a C++ file that is tuned."""
    return [
        (text.count("\n", 0, match.start()) + 1, name)
        for match in CONSTANT.finditer(text)
        for name in [match[1], *MORE.findall(match[0])]
        if name not in FIXED
    ]


def constants() -> list[tuple[str, str]]:
    """Returns (place, name) of the constants of all modules."""
    found = []
    for module in MODULES:
        for file in sorted((ROOT / "medley" / module).glob("*.[hc]*")):
            if file.name.endswith("_test.cpp") or file.name == "CMakeLists.txt":
                continue
            found += [
                (f"{file.relative_to(ROOT)}:{line}", name) for line, name in names(file.read_text())
            ]
    return found


def main() -> int:
    """Prints the list, or with --check a line if it is too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if there are too many")
    asked = parser.parse_args()
    found = constants()
    if not asked.check:
        for place, name in found:
            print(f"{place:50} {name}")
    if len(found) > LIMIT:
        print(f"found {len(found)} tuned constants, expected at most {LIMIT}: see {__file__}")
    elif not asked.check:
        print(f"{len(found)} tuned constants, at most {LIMIT}")
    return int(len(found) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
