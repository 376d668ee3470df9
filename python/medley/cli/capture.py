"""`medley capture`: a model as a graph."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from typing import Any

from medley import _core
from medley.cli.verb import print_next, progress, wrapped
from medley.files import write_atomically


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.add_argument(
        "model",
        help="package.module:function that returns (model, example batch), hf:config.json or "
        "hf:mixtral; arguments behind a ?: medley_extras.models:bert?size=base&layers=48",
    )
    parser.add_argument("--batch", metavar="ROWSxLENGTH", help="size of the example batch: 4x128")
    parser.add_argument(
        "--autocast", action="store_true", help="matrix products in bf16, weights as they are"
    )
    parser.add_argument(
        "--lora",
        metavar="r=16,targets=q_proj,v_proj",
        help="train adapters of the package peft in place of the weights, which are frozen",
    )
    parser.add_argument(
        "--bits",
        type=int,
        choices=[4],
        help="weights of 4 bits as bitsandbytes packs them; with --lora, this is QLoRA",
    )
    parser.add_argument("-o", "--output", required=True, help="write the graph here: g.graph")


def command(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    sys.path.insert(0, os.getcwd())
    import torch
    from torch import nn

    from medley.adapters import with_lora
    from medley.capture import model_name, weightless
    from medley.graph import capture
    from medley.quantized import with_4bit

    size = _read_batch(arguments.batch)

    def make() -> tuple[nn.Module, Any]:
        made, example = model_name.load(arguments.model, size)
        made = with_4bit(made) if arguments.bits else made
        return (with_lora(made, arguments.lora) if arguments.lora else made), example

    model, batch = weightless.load(make)
    with progress("capturing", arguments.json), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the graph is not checked")  # the printed line reports it
        graph = capture(model, batch, autocast=torch.bfloat16 if arguments.autocast else None)
    text = graph.text()
    write_atomically(arguments.output, text)
    rows = {
        "graph": arguments.output,
        "ops": graph.core.num_ops,
        "parameters": len(graph.core.parameter_names),
        "hash": graph.hash(),
        "row_coupling": _core.row_coupling(graph.core),
        "unchecked": graph.unchecked,
    }
    if arguments.json:
        print(json.dumps(rows))
        return 0
    print(f"{rows['graph']}: {rows['ops']} ops, {rows['parameters']} parameters")
    if rows["row_coupling"]:
        print(wrapped(f"{rows['row_coupling']}: plans have one micro-batch"))
    if rows["unchecked"]:
        print(wrapped(f"not checked: {rows['unchecked']}"))
    words = ["medley", "plan", arguments.output, "cluster.yaml"]
    print_next([*words, "--global-batch", "64", "-o", "plan.json"])
    return 0


def _read_batch(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    rows, _, length = text.partition("x")
    if not (rows.isdigit() and length.isdigit() and int(rows) > 0 and int(length) > 0):
        raise ValueError(f"--batch: found {text}, expected ROWSxLENGTH such as 4x128")
    return int(rows), int(length)
