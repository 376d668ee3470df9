"""The training graph of a transformers config, for any length: no weights, few traces."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from medley.adapters import with_lora
from medley.capture import Capture, CaptureError, capture_full, weightless
from medley.quantized import with_4bit
from medley_extras.fits.beside import Beside
from medley_extras.fits.facts import Facts, Traces
from medley_extras.fits.imports import import_packages
from medley_extras.fits.stretch import UnevenError
from medley_extras.models import hf

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")  # names in configs
_LENGTHS = (211, 223)  # primes, shorter than any window of attention


class Deep:
    """The model of a config.json. `lora`: as in `medley capture --lora`, "" to train the whole
    model. `has_4_bits`: as with its --bits 4. Raises ValueError for a config unknown to
    transformers."""

    def __init__(self, path: str, lora: str, has_4_bits: bool = False) -> None:
        self._path, self._lora, self._has_4_bits = path, lora, has_4_bits
        import_packages(("transformers", "peft") if lora else ("transformers",))
        self._config = hf.config_of(path)
        self.layers = 0  # repeated layers; 0: none found
        for name in _LAYERS:
            self.layers = self.layers or int(getattr(self._config, name, None) or 0)
        self._traces: Traces | None = None
        self._is_even = self.layers > 3
        self._beside = self._begin()
        model, batch = weightless.shaped(lambda: self._make(self._config, None))
        self._shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        parameters = list(model.parameters())
        self.facts = Facts(
            kind=str(self._config.model_type),
            dtype=str(parameters[0].dtype).removeprefix("torch."),
            # Two 4-bit weights share one value.
            weights=sum(p.numel() * (2 if p.dtype == torch.uint8 else 1) for p in parameters),
            trained=sum(p.numel() for p in parameters if p.requires_grad),
            kept=sum(_kept(p) for p in parameters),
            # Lengths above a window are computed in another way, which shorter traces do not show.
            longest=min(
                int(getattr(self._config, name, None) or 1 << 30)
                for name in ("max_position_embeddings", "n_positions", "sliding_window")
            ),
            takes_tokens="input_ids" in batch,
        )

    def close(self) -> None:
        """Ends unused work in the other process."""
        if self._beside is not None:
            self._beside.end()
            self._beside = None

    @property
    def traces(self) -> Traces | None:
        """The traces of the texts made so far, or None if those had all layers."""
        return self._traces if self._is_even else None

    def captured(self, length: int | None) -> str:
        """Returns the text of the graph, captured with all layers, which is slow."""
        return self._capture(self._config, length).text

    def _begin(self) -> Beside | None:
        """Starts tracing the model with twice the repeated layers in another process."""
        with contextlib.suppress(UnevenError):
            if self._is_even and self._unit():
                return Beside(self._two)
        return None

    def _two(self) -> str:
        found = self._shallow(2)
        if found.assigned:
            raise UnevenError("code that assigns buffers anew")
        return found.text

    def text(self, length: int | None) -> str:
        """Returns the captured graph at a length of tokens; None for a model without tokens."""
        if self._is_even and (length is None or length <= self.facts.longest):
            try:
                unit = self._unit()
                self._traces = self._traces or self._traced(unit)
                text = self._traces.stretched.text(self.layers // unit, length or 0)
                _check_shapes(text, self._shapes)
                return text
            except UnevenError:
                self._is_even = False
        return self._capture(self._config, length).text

    def _traced(self, unit: int) -> Traces:
        two, three = self._side_by_side() or self._one_after_the_other()
        lengths = _LENGTHS if self.facts.takes_tokens else (0, 0)
        return Traces(two, three, lengths, unit, self.layers)

    def _side_by_side(self) -> tuple[str, str] | None:
        """Returns both traces, this one on the assumption that the code reassigns no buffer.
        Returns None if that is wrong, or if they fail. The other process checks it."""
        if self._beside is None:
            return None
        try:
            three = self._shallow(3, set()).text
        except CaptureError:
            return None
        two = self._beside.text()
        return None if two is None else (two, three)

    def _one_after_the_other(self) -> tuple[str, str]:
        return self._shallow(2).text, self._shallow(3).text

    def _shallow(self, times: int, assigned: set[tuple[str, str]] | None = None) -> Capture:
        """Captures two or three times the unit of repeated layers, each at a length of its own.
        `assigned`: reassigned buffers; None looks for them."""
        config = self._with_layers(self._unit() * times)
        return self._capture(config, _LENGTHS[times - 2], assigned)

    def _unit(self) -> int:
        """Returns the number of layers that repeat together: lists of the config have an entry for
        each."""
        unit = 1
        while any(values != values[:unit] * (self.layers // unit) for values in self._lists()):
            unit += 1
            while self.layers % unit:
                unit += 1
        if 3 * unit >= self.layers:
            raise UnevenError(f"layers that repeat by {unit}")
        return unit

    def _lists(self) -> list[list[Any]]:
        fields = vars(self._config).values()
        return [each for each in fields if isinstance(each, list) and len(each) == self.layers]

    def _with_layers(self, layers: int) -> Any:
        config = copy.deepcopy(self._config)
        for name, value in vars(self._config).items():
            if isinstance(value, list) and len(value) == self.layers:
                setattr(config, name, value[:layers])
            elif name in _LAYERS:
                setattr(config, name, layers)
        return config

    def _make(self, config: Any, length: int | None) -> tuple[nn.Module, dict[str, Tensor]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, batch = hf.build(copy.deepcopy(config), batch=1, tokens=length)
            model = with_4bit(model) if self._has_4_bits else model
            return (with_lora(model, self._lora) if self._lora else model), batch

    def _capture(
        self, config: Any, length: int | None, assigned: set[tuple[str, str]] | None = None
    ) -> Capture:
        model, batch = weightless.load(lambda: self._make(config, length))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return capture_full(model, batch, check=False, assigned=assigned)


def _kept(parameter: Tensor) -> int:
    """Returns the bytes of a weight with its AdamW state: two moments in f32, and an f32 copy of a
    16-bit weight."""
    size = parameter.element_size()
    moments = 8 + (4 if size < 4 else 0) if parameter.requires_grad else 0
    return parameter.numel() * (size + moments)


def _check_shapes(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises UnevenError if the parameters of a graph differ from those of the model."""
    found = {}
    for line in text.splitlines():
        if " = parameter " in line:
            name, _, kind = line.partition(' = parameter "')[2].rpartition('" : ')
            sizes = kind.partition("[")[2].rstrip("]")
            found[name] = tuple(int(size) for size in sizes.split(",") if size)
    if any(found.get(name, shape) != shape for name, shape in shapes.items()):
        raise UnevenError("parameters of other sizes in some layers")
    if missing := found.keys() - shapes.keys():
        raise UnevenError(f"{min(missing)}: no parameter of the model")
