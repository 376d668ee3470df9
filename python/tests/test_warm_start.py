"""A forked program ends, prints and receives signals like a started one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import warm_start
from medley.run import ends


def start(code: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
    """Starts Python code in a fork."""
    return subprocess.Popen(
        warm_start.command([sys.executable, "-c", code, *arguments]),
        env={**os.environ, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell makes background processes ignore Ctrl-C, these tests too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(
    ("code", "status", "errors"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
    ],
)
def test_the_end_is_that_of_the_program(code: str, status: int, errors: str) -> None:
    done = start(code)
    assert done.communicate(timeout=60)[1].endswith(errors)
    assert done.returncode == status


def test_a_program_has_what_it_is_given(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint(sys.argv[1:], sys.path[0], os.environ['GIVEN'])\n")
    inner = f"subprocess.run([sys.executable, {str(script)!r}, *sys.argv[1:]], check=True)"
    done = start(f"import subprocess, sys; {inner}", "a", "b c", GIVEN="there")
    out, errors = done.communicate(timeout=60)
    assert (out, errors) == (f"['a', 'b c'] {tmp_path} there\n", "")


def test_it_hears_of_signals_and_is_killed_with_what_stands_for_it() -> None:
    code = "import os, time\ntry:\n  print(os.getpid(), flush=True)\n  time.sleep(60)\n"
    code += "except KeyboardInterrupt:\n  print('heard')"
    done = start(code)
    assert done.stdout is not None and done.stdout.readline()
    done.send_signal(signal.SIGINT)
    assert done.communicate(timeout=60)[0] == "heard\n"
    done = start(code)
    assert done.stdout is not None
    process = int(done.stdout.readline())
    done.kill()
    done.communicate(timeout=60)
    end = time.monotonic() + 60
    while ends.is_running(process) and time.monotonic() < end:
        time.sleep(0.01)
    assert time.monotonic() < end
