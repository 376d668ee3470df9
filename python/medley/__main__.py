"""`python -m medley` is the command `medley`."""

import sys

from medley.cli import main

sys.exit(main())
