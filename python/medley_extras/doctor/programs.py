"""Checks of captured programs on each GPU: their results, and recorded launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import medley
from medley_extras.doctor import ranks
from medley_extras.doctor.finding import FAILURE, OK, UNTRIED, WARNING, Finding
from medley_extras.doctor.written_out import whole_attention, whole_attention_backward
from medley_extras.models import gpt
from medley_extras.probe import median_seconds

_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_CLOSE = {"f64": 1e-10, "f32": 1e-4, "f16": 2e-2, "bf16": 5e-2}  # relative to the largest element
_COMPILE_SECONDS = 40.0
_CASES = {"causal": (4, False), "masked": (4, True), "grouped": (2, False)}  # key heads, a bias


def error_of(found: Tensor, expected: Tensor) -> float:
    """Returns the largest error, relative to the largest element."""
    wide = expected.double().cpu()
    return float((found.double().cpu() - wide).abs().max() / wide.abs().max().clamp_min(1e-30))


def attention(devices: Sequence[torch.device]) -> list[Finding]:
    """Compares Medley's attention on every GPU with explicit scores on the CPU. The saved tensors
    must have the same form on all GPUs."""
    findings = []
    forms: dict[str, set[str]] = {}
    for device in devices:
        errors: dict[str, float] = {}
        wrong = []
        for type_name, dtype in _TYPES.items():
            if dtype == torch.bfloat16 and not _has_bf16(device):
                continue
            for case, (groups, masked) in _CASES.items():
                name = f"{case} {type_name}"
                error, form = attention_error(device, dtype, groups, masked)
                forms.setdefault(name, set()).add(form)
                errors[name] = error
                if not error <= _CLOSE[type_name]:
                    wrong.append(f"{name} is wrong by {error:.1e}")
        flash = device.type == "cuda" and torch.backends.cuda.is_flash_attention_available()
        text = f"{len(errors)} cases right" if not wrong else "; ".join(wrong)
        text += ", by flash kernels where one applies" if flash else ", written out"
        state, fix = (FAILURE, "attach the output of --json to a report") if wrong else (OK, "")
        figures = {"errors": errors}
        findings.append(Finding(f"attention on {device}", text, state, fix, figures))
    unlike = sorted(name for name, found in forms.items() if len(found) > 1)
    if unlike:
        text = f"saved for backward in other forms on other cards: {', '.join(unlike)}"
        fix = "attach the output of --json to a report"
        findings.append(Finding("attention", text, FAILURE, fix))
    return findings


def attention_error(
    device: torch.device, dtype: torch.dtype, groups: int, masked: bool
) -> tuple[float, str]:
    """Returns the largest error of result and gradients, and the form of the saved tensors."""
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k, v = draw(2, 4, 64, 32), draw(2, groups, 64, 32), draw(2, groups, 64, 32)
    bias = draw(2, 1, 64, 64) if masked else None
    grad = draw(2, 4, 64, 32)
    settings = (not masked, 0.2)  # causal, and the factor of the scores

    def on_card(x: Tensor) -> Tensor:
        return x.to(device, dtype)

    def rounded(x: Tensor) -> Tensor:
        return x.to(dtype).double()

    def both_ways(form: Callable[[Tensor], Tensor], forward: Any, backward: Any) -> list[Tensor]:
        own = [form(q), form(k), form(v), None if bias is None else form(bias)]
        out, lse = forward(*own, *settings)
        gradients = backward(form(grad), *own, out, lse, *settings)
        return [out, lse, *gradients[:3]]

    ops = torch.ops.medley
    out, lse, *found = both_ways(on_card, ops.attention, ops.attention_backward)
    reference = whole_attention, whole_attention_backward
    expected, _, *gradients = both_ways(rounded, *reference)
    error = max(
        error_of(each, known)
        for each, known in zip([out, *found], [expected, *gradients], strict=True)
    )
    return error, f"{out.dtype} {list(out.shape)}, {lse.dtype} {list(lse.shape)}"


def _has_bf16(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def model(devices: Sequence[torch.device]) -> list[Finding]:
    """Compares the loss and all gradients of a captured GPT on every GPU with the CPU's."""
    kinds = {"f64": _Model(None, torch.float64), "f32": _Model(None, torch.float32)}
    if any(map(_has_bf16, devices)):
        kinds["bf16"] = _Model(torch.bfloat16, torch.float32)
    findings = []
    for device in devices:
        errors = {
            name: each.error(device)
            for name, each in kinds.items()
            if name != "bf16" or _has_bf16(device)
        }
        wrong = [name for name, error in errors.items() if not error <= _CLOSE[name]]
        text = "a GPT's loss and gradients as on the processor: "
        text += ", ".join(f"{name} {error:.0e}" for name, error in errors.items())
        state, fix = (FAILURE, "attach the output of --json to a report") if wrong else (OK, "")
        findings.append(Finding(f"model on {device}", text, state, fix, {"errors": errors}))
    if len(devices) == 1:
        text = "one card: whether unlike cards agree was not seen"
        findings.append(Finding("models on unlike cards", text, UNTRIED, "two GPUs are needed"))
    return findings


class _Model:
    """A captured GPT, with the CPU's results in float64."""

    def __init__(self, autocast: torch.dtype | None, parameters: torch.dtype) -> None:
        torch.manual_seed(0)
        net, batch = gpt()
        graph = medley.capture(net, batch, check=False, autocast=autocast)
        wide = graph.text().replace("f32", "f64").replace("bf16", "f64")
        names = {f"{kind}:{name}" for kind, name, _, _ in graph.core.inputs}
        tensors = {
            **{f"parameter:{name}": each.detach() for name, each in net.named_parameters()},
            **{f"buffer:{name}": each for name, each in net.named_buffers()},
            **{f"buffer:{name}": each for name, each in graph.constants.items()},
            **{f"batch:{name}": each for name, each in batch.items()},
        }
        self._inputs = {name: each for name, each in tensors.items() if name in names}
        self._rows = next(iter(batch.values())).shape[0]
        self._parameters = parameters
        self._text = wide if parameters == torch.float64 else graph.text()
        self._expected = self._run(wide, torch.device("cpu"), torch.float64)

    def error(self, device: torch.device) -> float:
        """Returns the largest error of loss and gradients on a device, relative to the largest
        element."""
        found = self._run(self._text, device, self._parameters)
        return max(error_of(found[name], each) for name, each in self._expected.items())

    def _run(self, text: str, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        given = {
            name: (each.to(dtype) if each.is_floating_point() else each).to(device)
            for name, each in self._inputs.items()
        }
        return medley.Graph.parse(text).run(given, self._rows, str(device))


def replay(devices: Sequence[torch.device]) -> list[Finding]:
    """Checks that a recorded CUDA graph of forward and backward gives the same bits on replay."""
    return [_replay(device) for device in devices]


def _replay(device: torch.device) -> Finding:
    torch.manual_seed(0)
    net, batch = gpt()
    net = net.to(device)
    given = {name: each.to(device) for name, each in batch.items()}
    parameters = [each for each in net.parameters() if each.requires_grad]

    def step() -> list[Tensor]:
        out = net(**given)
        loss = out if isinstance(out, Tensor) else out["loss"]
        return [loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True)]

    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                eager = step()
        torch.cuda.current_stream().wait_stream(side)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            own = step()
        recorded.replay()
        torch.cuda.synchronize()
        identical = all(torch.equal(a, b) for a, b in zip(eager, own, strict=True) if a is not None)
        times = {
            "eager_s": median_seconds(step, device),
            "replay_s": median_seconds(recorded.replay, device),
        }
    text = f"{times['eager_s'] * 1e3:.2f} ms eager, {times['replay_s'] * 1e3:.2f} ms replayed"
    if identical:
        return Finding(f"recorded on {device}", f"{text}, the same bits", figures=times)
    fix = "Medley does not record; a kernel that adds in any order (atomics) is the usual cause"
    return Finding(f"recorded on {device}", f"{text}, other bits", WARNING, fix, times)


def compiled(devices: Sequence[torch.device]) -> list[Finding]:
    """Checks a block compiled ahead of time, in a process of its own, because compilers may crash
    it. Medley does not compile yet, so a failure has no effect."""
    what = f"compiled for {devices[0]}"
    backend = "nccl" if devices[0].type == "cuda" else "gloo"
    try:
        (figures,) = ranks.run("compiled", backend, 1, silence=_COMPILE_SECONDS)
    except ranks.StoppedError as stopped:
        fix = "nothing: Medley does not need it; a C++ compiler and the CUDA toolkit may be missing"
        return [Finding(what, str(stopped)[:300], WARNING, fix)]
    text = f"a block compiles, loads and runs in {figures['seconds']:.0f} s, "
    text += f"{figures['error']:.0e} from eager"
    return [Finding(what, text, figures=figures)]
