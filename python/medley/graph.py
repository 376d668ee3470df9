"""Captured graphs with the values of their constants."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor, nn

from medley import _core
from medley.ambient import in_mode, is_autocast
from medley.capture.batch import entries, reported
from medley.data.pictures import Pictures, pictures_of
from medley.data.row_dim import row_dims
from medley.files import read_text
from medley.methods import Loss, among, called, training
from medley.run import exchange
from medley.whole_tensors import CARRIED, DTYPES, types_of

if TYPE_CHECKING:
    from medley.capture import Capture


@dataclasses.dataclass(frozen=True)
class Graph:
    """A training graph: forward, loss and backward. `constants` are tensors of the model that are
    neither parameters nor buffers.

    Example:
        graph = medley.capture(model, (x, y))
        Path("model.graph").write_text(graph.text())
        graph = medley.Graph.load("model.graph")
    """

    core: _core.Graph  # ops
    constants: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)  # by name
    autocast: torch.dtype | None = None  # dtype of the autocast in capture
    unchecked: str = ""  # reason why the comparison with the model was skipped, or ""
    loss: Loss = "forward"  # captured loss of the model
    pictures: Pictures | None = None  # images among the rows of a batch
    # Output that an input of the batch receives in the next step, by the name of the input.
    carry: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        loss: Loss = "forward",
        carry: Mapping[str, str] | None = None,
    ) -> Graph:
        """Reads the text form. `loss` and `carry` are those given to `capture`. Raises ValueError
        naming the invalid line."""
        graph = Graph.parse(read_text(path), str(path))
        return dataclasses.replace(graph, loss=loss, carry=carry or {})

    @staticmethod
    def parse(text: str, file: str = "<text>") -> Graph:
        """Parses the text form. `file` is for error messages. Raises ValueError naming the invalid
        line."""
        return Graph(_core.Graph.parse(text, file), unchecked="it was read from a file")

    @property
    def outputs(self) -> list[str]:
        """The names of the results of a step other than the loss."""
        return [
            name
            for kind, name, *_ in self.core.outputs
            if kind == "metric" and not name.startswith(CARRIED)
        ]

    @property
    def rows(self) -> dict[str, torch.dtype]:
        """The dtypes of the outputs that are tensors of rows, by name."""
        return {
            name: DTYPES[dtype]
            for kind, name, dtype, shape in self.core.outputs
            if kind == "metric" and shape != "[]" and not name.startswith(CARRIED)
        }

    def text(self) -> str:
        """Returns the text form. Parsing it gives an equal graph."""
        return self.core.text()

    def hash(self) -> str:
        """Returns the SHA-256 of the canonical text."""
        return self.core.hash()

    def run(
        self, inputs: Mapping[str, Tensor], rows: int, device: str = "cpu"
    ) -> dict[str, Tensor]:
        """Computes the graph on one device, without a plan, for `rows` rows. Names have a prefix:
        inputs such as "parameter:fc.weight" and "batch:x", results such as "loss" and
        "gradient:fc.weight"."""
        from medley import _runtime

        return _runtime.GraphRunner(self.text(), [rows], device).run(dict(inputs))


def as_graph(graph: Graph | _core.Graph) -> Graph:
    """Returns a graph of the core with no constants; a Graph is returned as it is."""
    if isinstance(graph, Graph):
        return graph
    if not isinstance(graph, _core.Graph):
        raise ValueError(
            f"graph: found {type(graph).__name__}, expected what medley.capture(...) or "
            "medley.Graph.load(path) returns"
        )
    return Graph(graph)


def capture(
    model: nn.Module,
    example_batch: Any,
    name: str | None = None,
    check: bool | None = None,
    autocast: torch.dtype | None = None,
    loss: Loss = "forward",
    train: str | Sequence[str] | None = None,
    rows: Mapping[str, int | None] | None = None,
    outputs: str | Sequence[str] = (),
    carry: Mapping[str, str] | None = None,
) -> Graph:
    """Captures forward, loss and backward of a model.

    A dict batch is passed as model(**example_batch), a tuple or list as model(*example_batch), any
    other as model(example_batch). The model returns a scalar loss, an object or dict with a loss,
    or (loss sum, normaliser). If the first element of the pair is already a mean, it is the loss.
    Parameters may be real, fake or on the meta device.

    Other scalars that the model returns must be sums or means over rows. Every step returns them in
    `Metrics.outputs`. `outputs` adds tensors of rows by pattern, such as "logits" or
    "hidden_states.*". Every device then receives the rows of the whole batch.

    `carry` feeds outputs, detached, to inputs of the next step: {"hidden": "new_hidden"}, as in
    truncated backpropagation through time. Batches of the trainer lack these inputs. The first step
    reads zeros.

    Only the number of rows may differ between batches. Rows are dim 0 of the tensors, or the only
    other layout that the model accepts: dim 1 of all tensors [time, rows], or of positions [3,
    rows, tokens]. If several layouts work, `rows` names the dim: {"position_ids": 1}, or None if it
    has no rows.

    By default the graph is compared with the model in plain PyTorch on a few rows, and again with
    other values. Loss, metrics, buffers and gradients must agree. If the comparison is impossible,
    a warning gives the reason, and a trainer checks in its first step. Reasons are parameters
    without values, too little memory, or minutes of work. `check=True` raises an error in place of
    the warning, allows minutes, and also captures with another number of rows. The default does the
    latter only for small graphs. `check=False` skips the comparison.

    `autocast`, such as torch.bfloat16, captures under `torch.autocast` of that dtype. An autocast
    around the call has no effect. In a job the first process captures for all.

    `loss` replaces forward: a function of the model and the batch, such as `lambda model, x, y:
    F.mse_loss(model(x), y)`, or the name of a method. `train`, one or more patterns of names,
    limits gradients to matching parameters. The graph only reads the others.

    Raises CaptureError, a ValueError, naming op, module and line of an unsupported op, or the first
    module whose output differs. Warns of ops without a sharding rule, which run replicated, and of
    a model in eval mode.
    """
    unchecked: list[str] = []
    pictures = pictures_of(model)
    if pictures is not None and pictures.are_in(example_batch):
        pictures = pictures.of(example_batch)
        example_batch = pictures.padded(example_batch, {})
    else:
        pictures = None

    def first() -> Capture:
        from medley.capture import capture_full, placed

        if isinstance(model, nn.Module) and not model.training:
            warnings.warn(
                "the model is in eval mode: it is captured without dropout and with batch norms "
                "that do not learn their statistics; call model.train() to train all of it",
                stacklevel=6,
            )
        if autocast is None and is_autocast():
            warnings.warn(
                "capture: torch.autocast around it has no effect; pass autocast=torch.bfloat16",
                stacklevel=6,
            )
        view = called(model, loss)
        called_as = loss if isinstance(loss, str) else getattr(loss, "__name__", "loss")
        graph_name = name or ".".join([type(model).__name__, called_as][: 1 + (view is not model)])
        with placed(view), training(model, None if train is None else among(train)):
            beside = functools.partial(reported, is_wanted=among(outputs), carry=carry or {})
            captured = capture_full(
                view,
                example_batch,
                graph_name,
                check,
                autocast,
                beside,
                rows=rows,
                pictures=pictures,
            )
            captured = dataclasses.replace(captured, text=_separable(captured.text))
            if outputs or carry:
                _require(outputs, carry or {}, captured.text)
            if check is not False:
                core, _ = _core.Graph.parse(captured.text, "<capture>").run_passes()
                graph = Graph(
                    core, captured.constants, autocast, pictures=pictures, carry=carry or {}
                )
                unchecked.append(compare(graph, view, example_batch, check is True))
        return captured

    text, constants = _unpacked(_captured_by_first(first))
    core, _ = _core.Graph.parse(text, "<capture>").run_passes()
    for why in filter(None, unchecked):
        warnings.warn(f"the graph is not checked beside the model: {why}", stacklevel=2)
    if missing := _core.fallbacks(core):
        warnings.warn(
            f"no rule fits {', '.join(missing)}: every device computes these whole, which is right "
            "but no faster than one device (docs/howto/add_an_op.md)",
            stacklevel=2,
        )
    return Graph(core, constants, autocast, "".join(unchecked), loss, pictures, dict(carry or {}))


def _separable(text: str) -> str:
    """Returns the text of a graph without the scalars that are no sum over rows, if the loss is
    one: such scalars would cover one micro-batch each. Warns of them."""

    if "\noutput metric " not in text:
        return text

    def why_not(names: Collection[str]) -> str:
        core = _core.Graph.parse(_with_outputs(text, names), "<capture>").run_passes()[0]
        return str(_core.row_coupling(core))

    graph = Graph(_core.Graph.parse(text, "<capture>"))
    names, asked = graph.outputs, graph.rows
    if len(names) == len(asked) or not why_not(names) or why_not(asked):
        return text
    refused = {name: why for name in names if (why := why_not([*asked, name]))}
    for name, why in refused.items():
        warnings.warn(
            f"a step does not return the output {name!r}: it is no sum or mean over rows ({why}); "
            "return its terms, and compute it from them behind the step",
            stacklevel=7,
        )
    return _with_outputs(text, [name for name in names if name not in refused])


def _require(outputs: str | Sequence[str], carry: Mapping[str, str], text: str) -> None:
    """Raises CaptureError for a pattern that matches no output, and for a carried output without an
    input of its type."""
    from medley.capture import CaptureError

    core = _core.Graph.parse(text, "<capture>")
    names = Graph(core).outputs
    inputs = {name: rest for kind, name, *rest in core.inputs if kind == "batch"}
    for _, name, *type_ in core.outputs:
        if not name.startswith(CARRIED):
            continue
        given = name.removeprefix(CARRIED)
        dtype, shape = inputs.get(given, ("no such input", ""))
        if [dtype, shape] != type_ or "b" not in shape.strip("[]").split(", "):
            raise CaptureError(
                f"carry: {given!r}: found an input of the batch that is {dtype}{shape} and the "
                f"output {carry[given]!r} that is {''.join(type_)}, expected one type, with the "
                "rows of the batch as one dim"
            )
    for pattern in [outputs] if isinstance(outputs, str) else outputs:
        if not any(map(among(pattern), names)):
            raise CaptureError(
                f"outputs: found {pattern!r}, expected the name of a tensor that the model returns "
                "beside the loss: a key of a dict, a field, a position in a tuple"
            )


def _with_outputs(text: str, names: Collection[str]) -> str:
    """Returns the text of a graph without the metrics outside `names`."""
    kept = tuple(f"output metric {_core.quote(name)} " for name in names)
    kept += (f'output metric "{CARRIED}',)
    return "".join(
        line
        for line in text.splitlines(keepends=True)
        if not line.startswith("output metric ") or line.startswith(kept)
    )


def compare(
    graph: Graph,
    model: nn.Module,
    example_batch: Any,
    must: bool = False,
    in_any_mode: bool = False,
) -> str:
    """Compares a graph with its model on a few rows. Returns "", or the reason why it could not.
    With `must` that reason is an error. Raises CaptureError naming the first module whose output
    differs; with `in_any_mode` only if it differs in both train mode and eval mode."""
    from medley.capture import CaptureError, proof

    text = graph.text()
    errors: list[CaptureError] = []
    for mode in (None, True, False) if in_any_mode else (None,):
        with contextlib.nullcontext() if mode is None else in_mode(model, mode):
            try:
                why = proof.prove(
                    model,
                    example_batch,
                    text,
                    graph.constants,
                    graph.autocast,
                    must,
                    rows_of(graph, example_batch),
                    graph.pictures,
                    graph.carry,
                )
                break
            except CaptureError as error:
                errors.append(error)
    else:
        raise errors[0]
    if why and must:
        raise CaptureError(f"check=True: the graph cannot be checked beside the model: {why}")
    return why


def rows_of(graph: Graph, example_batch: Any) -> dict[str, int | None]:
    """Returns the dim of the rows of each tensor of a batch, derived from a graph of the model."""
    held = entries(example_batch)
    return {name: dim for name, dim in row_dims(types_of(graph.core)).items() if name in held}


def capture_forward(
    model: nn.Module, example_batch: Any, trained: Graph, known: bytes = b""
) -> tuple[Graph, bytes]:
    """Captures the forward phase of a model for a batch, without gradients. The outputs are the
    loss, all other scalars, and the rows that a step of `trained` returns, with their dims and
    types. In a job the first process captures for all, or sends its earlier capture `known`.
    Returns the graph and that capture."""
    parcel = _captured_by_first(lambda: _captured_as(trained, model, example_batch), known)
    text, constants = _unpacked(parcel)
    core, _ = _core.Graph.parse(text, "<capture>").forward_only().run_passes()
    return Graph(core, constants, trained.autocast, carry=trained.carry), parcel


def capture_isomorphic(model: nn.Module, example_batch: Any, planned: Graph, length: int) -> Graph:
    """Captures a model as `planned` was, with the lengths of another batch. In a job the first
    process captures for all. Raises ValueError if constants depend on the length."""
    trained = {name for kind, name, *_ in planned.core.outputs if kind == "gradient"}

    def first() -> Capture:
        with training(model, trained.__contains__):
            captured = _captured_as(planned, model, example_batch)
        return dataclasses.replace(captured, text=_with_outputs(captured.text, planned.outputs))

    parcel = _captured_by_first(first)
    text, constants = _unpacked(parcel)
    core, _ = _core.Graph.parse(text, "<capture>").run_passes()
    for name, value in constants.items():
        if name not in planned.constants or not torch.equal(value, planned.constants[name]):
            raise ValueError(
                f"batch of length {length}: found a tensor that the model makes outside of forward "
                f"({name}) with other values than at the planned length, expected the same"
            )
    return Graph(core, constants, planned.autocast)


def _captured_as(graph: Graph, model: nn.Module, example_batch: Any) -> Capture:
    from medley.capture import capture_full  # loads more of PyTorch than others

    return capture_full(
        model,
        example_batch,
        autocast=graph.autocast,
        beside=functools.partial(reported, is_wanted=graph.rows.__contains__, carry=graph.carry),
        rows=rows_of(graph, example_batch),
        pictures=graph.pictures,
    )


def _captured_by_first(capture: Callable[[], Capture], known: bytes = b"") -> bytes:
    """Returns text and constants that the first process captures or has in `known`."""

    def first() -> bytes:
        if known:
            return known
        captured = capture()
        own = {key: value.contiguous().clone() for key, value in captured.constants.items()}
        text = captured.text.encode()
        packed: bytes = safetensors.torch.save(own)
        return len(text).to_bytes(8, "little") + text + packed

    return exchange.from_first(first, "captures the model")


def _unpacked(parcel: bytes) -> tuple[str, dict[str, Tensor]]:
    end = 8 + int.from_bytes(parcel[:8], "little")
    constants: dict[str, Tensor] = safetensors.torch.load(parcel[end:])
    return parcel[8:end].decode(), constants
