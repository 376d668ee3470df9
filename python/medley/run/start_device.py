"""`python start_device.py PARENT COMMAND...` runs a command that is killed when PARENT ends. It is
run by its path, without a package. A process with several threads cannot do this between fork and
exec (subprocess's preexec_fn)."""

import contextlib
import ctypes
import os
import signal
import sys

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main() -> None:
    """Replaces this process by the command. Returns only on failure."""
    parent, *command = sys.argv[1:]
    # A shell makes background processes ignore SIGINT, and children inherit that. They would be
    # killed without reacting to Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Linux: no process remains even if the parent is killed without a chance to clean up.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() == int(parent):
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
