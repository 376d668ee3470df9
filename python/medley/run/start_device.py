"""`python start_device.py PARENT COMMAND...` becomes a command that is killed when PARENT ends.

Run by its path, without any package. A process of several threads may not do this between fork and
exec (subprocess's preexec_fn).
"""

import contextlib
import ctypes
import os
import signal
import sys

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main() -> None:
    """Never returns if all is well."""
    parent, *command = sys.argv[1:]
    # A shell lets what it starts in the background ignore SIGINT, and children inherit that: they
    # would not hear of Ctrl-C and be killed before they have saved anything.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Linux: nothing is left behind even if the parent is killed without a chance to clean up.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() == int(parent):
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
