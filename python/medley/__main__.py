"""`python -m medley` is the command `medley`."""

import sys

from medley.cli import command

sys.exit(command())
