"""`medley train`: trains a model by name on a folder of text or images."""

from __future__ import annotations

import argparse
import os
import sys

from medley_extras.train.options import from_namespace, prepare

__all__ = ["command", "prepare"]


def command(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    sys.path.insert(0, os.getcwd())
    options = from_namespace(arguments)
    from medley_extras.train.run import train

    return train(options)
