"""The state of PyTorch that a script sets around its own ops: gradients, autocast, devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_AUTOCAST = ("cpu", "cuda")


@contextlib.contextmanager
def own_state() -> Iterator[None]:
    """Sets the state that the package needs inside the block, and puts the caller's back after it:
    gradients, no inference mode, no autocast, no anomaly detection, the cpu as the default device,
    no oneDNN, any algorithm. The default dtype stays the caller's, because the model reads it."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in _AUTOCAST:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(torch.device("cpu"))
        # An LSTM is one op of oneDNN, and many once it is traced.
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)
        stack.enter_context(torch.autograd.set_detect_anomaly(False))
        if deterministic:
            stack.callback(torch.use_deterministic_algorithms, True, warn_only=warn_only)
            torch.use_deterministic_algorithms(False)
        yield


def is_autocast() -> bool:
    """Returns whether the caller has set autocast for a device."""
    return any(torch.is_autocast_enabled(device) for device in _AUTOCAST)
