"""Names that have been replaced by the field's words do not come back (docs/glossary.md)."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["benchmarks", "docs", "examples", "medley", "python", "scripts", "testbed", "tests"]
SUFFIXES = {".case", ".cpp", ".dict", ".h", ".json", ".md", ".py", ".sh", ".yaml"}
CODE = (".cpp", ".h", ".py")

# The pattern of the old name, the word that replaces it, and the suffixes of the files in question.
OLD = [
    (
        r"(?<![\w-])--(?:meet|dead-after|restarts|second-homes-every|survive)(?![\w-])",
        "torchrun's",
        (),
    ),
    (r"\b(?:MEDLEY_)?DEAD_AFTER\b|\bdead_after\w*", "heartbeat_timeout", ()),
    (r"\bcannot_survive\b|\"survive\"|\bSURVIVE_CLUSTERS\w*", "tolerate_node_loss", ()),
    (
        r"\b(?:begin|fail|finish|joined)_epoch\b|\bEpoch(?:Error|Group)\b|run[./]epochs\b",
        "generation",
        (),
    ),
    (r"(?i)\bsecond[ _-]?homes?\b|\b(?:fill|with)_homes\w*", "state replica", ()),
    (
        r"\b[Rr]elays?\b|\b\w+_relays?\w*|\bk?Relay[A-Z]\w*|\brelay_\w+|\bkRelay\b",
        "gradient sync",
        (),
    ),
    (r"\b\w*late_weights\b|\bLateWeights\w*|\blate weights\b", "deferred weight gradients", ()),
    (r"[\"`.>]at_once\b|\border_at_once\b|\bkAtOnce\b", "interleave", ()),
    (r"\bConversionSteps?\b|\bconversion_(?:steps|bytes)\b", "redistribution", ()),
    (r"\b_?rows_meet\w*|\bRowsMeet\b", "cross_sample", ()),
    (r"\bhidden_(?:nanoseconds|seconds|share|percent)\b|behind backward", "overlapped", ()),
    (
        r"\b(?:ProgramDeal|DealtBox|Dealer)\b|_core\.(?:Deal|Moves)\b",
        "write plan, reshard plan",
        (),
    ),
    (r"\b(?:takes_of|moves_between|MovePeers|MovedBytes|move_state|fill_homes)\b", "reshard", ()),
    (
        r"\b(?:AxisState|StateId|StateText|parse_state_text|(?:operand|result)_states)\b",
        "placement",
        (),
    ),
    (r"[\"`]states[\"`]: ?\{", "placements", ()),
    (r"\b\w+_alike_?\b|\balike_\w+|\b\w*Alike[A-Z]?\w*", "identical, isomorphic, equivalent", CODE),
    (
        r"\bfor_each_beside\b|\bdo_the_same\b|\bwholes\(|\bkRoughGap\b|\bfind_homes\b",
        "a plain name",
        (),
    ),
    (
        r"accumulate/weight\.|\bSummedWeight\b|\bweights? of (?:a |the )?loss(?:es)?\b",
        "normaliser",
        (),
    ),
    (r"\bseams?\b", "interface", ()),
    (r"\bdevice kinds?\b|\bkinds? of devices?\b", "device type", ()),
    (r"\bcomputed again\b", "recomputed", ()),
    (
        r"\bTEST(?:_[FP])?\(\s*\w+,\s*(?:Who|Whoever|What|Nobody|Somebody|AllThat)[A-Z]",
        "a claim",
        (".cpp",),
    ),
    (r"\bdef test_(?:who|whoever|what|nobody|somebody)_", "a claim", (".py",)),
    (r"\btold\b", "reported, published, message", (".cpp", ".h")),
]


def files() -> list[Path]:
    found = [ROOT / "README.md"]
    for folder in FOLDERS:
        found += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    return [path for path in found if path.is_file() and path != Path(__file__)]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text(errors="replace") for path in files()}


@pytest.mark.parametrize(("old", "new", "suffixes"), OLD)
def test_old_names_stay_away(
    texts: dict[str, str], old: str, new: str, suffixes: tuple[str, ...]
) -> None:
    pattern, found = re.compile(old), []
    for path, text in texts.items():
        if suffixes and not path.endswith(suffixes):
            continue
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path}:{line}: found {match.group()!r}, expected {new}")
    assert not found, "\n".join(found[:20])
