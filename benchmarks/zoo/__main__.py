"""Public models, made tiny, trained beside PyTorch: `python -m benchmarks.zoo`.

All causal, masked, sequence-to-sequence and image models of the transformers package: each is
captured, planned by rows and by `auto` for three unlike devices, and trained for two steps in
float64. A model is a process of its own with a time limit, so that none can hide the others.
Prints a table of what became of them; `--page` writes it as a page of the documentation.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import queue
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.zoo import tiny, training

FAMILIES = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
# In the order of the table: first what should not be.
RESULTS = [
    training.WRONG,
    training.CRASHED,
    training.REFUSED,
    training.EXACT,
    training.EXACT_SINGLE,
    training.NO_PEER,
]


def names(family: str) -> list[tuple[str, str]]:
    """Returns (kind of config, class) of all models of a family."""
    from transformers.models.auto import modeling_auto

    found = []
    for kind, classes in getattr(modeling_auto, FAMILIES[family]).items():
        for each in classes if isinstance(classes, tuple) else (classes,):
            found.append((kind, each))
    return found


def train(kind: str, name: str) -> dict[str, Any]:
    """Builds the tiny form of a model and trains it; see training.outcome."""
    import torch
    import transformers

    from medley.models import hf

    torch.set_num_threads(1)
    torch.manual_seed(training.SEED)
    try:
        known = transformers.AutoConfig.for_model(kind)
        # The default kernel of routed experts has no float64; capture does not care.
        fields = {**tiny.tiny_fields(known), "experts_implementation": "eager"}
        config = transformers.AutoConfig.for_model(kind, **fields)
        config.architectures = [name]
        model, batch = hf.build(config, batch=training.ROWS, tokens=tiny.TOKENS)
    except Exception as error:
        sentence = " ".join(f"{type(error).__name__}: {error}".split())
        return {"result": training.NO_PEER, "sentence": sentence}
    return training.outcome(model, batch)


def _child(kind: str, name: str, results: Any) -> None:
    try:
        results.put(train(kind, name))
    except BaseException:
        results.put({"result": training.CRASHED, "sentence": traceback.format_exc()[-400:]})


def train_apart(kind: str, name: str, limit: float) -> dict[str, Any]:
    """Runs `train` in a process of its own, for at most `limit` seconds."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=_child, args=(kind, name, results), daemon=True)
    process.start()
    found: dict[str, Any] | None = None
    waited = 0.0
    while found is None and waited < limit and (process.is_alive() or not results.empty()):
        try:
            found = results.get(timeout=0.5)
        except queue.Empty:
            waited += 0.5
    if found is None:
        died = not process.is_alive()
        sentence = f"ended with {process.exitcode}" if died else f"not done in {limit:g} s"
        found = {"result": training.CRASHED, "sentence": sentence}
    process.kill()
    process.join()
    return found


def print_counts(found: list[dict[str, Any]]) -> None:
    """Prints how many models of each family came to which result."""
    for family in sorted({each["family"] for each in found}):
        counts = collections.Counter(x["result"] for x in found if x["family"] == family)
        print(f"{family}: " + ", ".join(f"{counts[r]} {r}" for r in RESULTS if counts[r]))


def page(found: list[dict[str, Any]]) -> str:
    """Returns the table of what is not exact, as Markdown, worst first."""
    lines = ["| model | class | result | where | what it says |", "|---|---|---|---|---|"]
    for result in RESULTS:
        if result == training.EXACT:
            continue
        for each in found:
            if each["result"] == result:
                sentence = each.get("sentence", f"{each.get('difference', 0):.1e}")[:300]
                sentence = sentence.replace("|", "\\|")
                lines.append(
                    f"| {each['kind']} | {each['class']} | {result} | {each.get('plan', '')} | "
                    f"{sentence} |"
                )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--only", nargs="+", help="kinds of configs, such as llama")
    parser.add_argument("--every", type=int, default=1, help="take each n-th model only")
    parser.add_argument("--limit", type=float, default=180, help="seconds for a model")
    parser.add_argument("--output", type=Path, help="write all results here, as JSON lines")
    parser.add_argument("--page", type=Path, help="write the table of failures here")
    options = parser.parse_args()
    found = []
    for family in options.families:
        listed = [x for x in names(family) if not options.only or x[0] in options.only]
        for kind, name in listed[:: options.every]:
            each = train_apart(kind, name, options.limit)
            each = {"family": family, "kind": kind, "class": name, **each}
            found.append(each)
            print(f"{kind} {name}: {each['result']}; {each.get('sentence', '')[:200]}", flush=True)
            if options.output:
                with options.output.open("a") as file:
                    file.write(json.dumps(each) + "\n")
    print_counts(found)
    if options.page:
        options.page.write_text(page(found))
    return 1 if any(x["result"] in (training.WRONG, training.CRASHED) for x in found) else 0


if __name__ == "__main__":
    sys.exit(main())
