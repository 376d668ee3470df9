"""The state that a script sets around its ops: gradients, autocast, devices, mode of the model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

_AUTOCAST = ("cpu", "cuda")


@contextlib.contextmanager
def own_state() -> Iterator[None]:
    """Sets the state that the package needs inside the block, and restores the caller's after it.
    Gradients are on; inference mode, autocast, anomaly detection, oneDNN and deterministic
    algorithms are off; the default device is the CPU. The default dtype stays the caller's: the
    model reads it."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in _AUTOCAST:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(torch.device("cpu"))
        # oneDNN runs an LSTM as one op. Tracing splits it into many.
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        if deterministic:
            stack.callback(torch.use_deterministic_algorithms, True, warn_only=warn_only)
            torch.use_deterministic_algorithms(False)
        yield


def is_autocast() -> bool:
    """Returns whether the caller has enabled autocast on any device."""
    return any(torch.is_autocast_enabled(device) for device in _AUTOCAST)


@contextlib.contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Sets every module to train or eval mode inside the block, and restores its mode after it."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


def in_eval_mode(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Sets every module to eval mode inside the block, and restores its mode after it."""
    return in_mode(model, False)
