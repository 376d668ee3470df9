"""Work beside training: a Python module that runs in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

_START = Path(__file__).with_name("start_device.py")


class Beside:
    """Runs `python -m module` with a text as its input. It prints JSON values, one per line. It is
    killed with this object, and with this process."""

    def __init__(self, module: str, text: str) -> None:
        self._read = 0  # bytes read of its output
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        with tempfile.TemporaryFile() as words:
            words.write(text.encode())
            words.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, _START, str(os.getpid()), sys.executable, "-m", module],
                stdin=words,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        with contextlib.suppress(OSError):  # Linux: if memory runs out, it ends before training
            Path(f"/proc/{self._process.pid}/oom_score_adj").write_text("1000")
        self.close = weakref.finalize(self, _end, self._process, self._output)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and prints no more values."""
        return self._process.poll() is not None

    def values(self) -> list[Any]:
        """Returns the values printed since the last call."""
        file = self._output.fileno()
        found = os.pread(file, os.fstat(file).st_size - self._read, self._read)
        whole = found[: found.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def _end(process: subprocess.Popen[bytes], output: Any) -> None:
    process.kill()
    process.wait()
    output.close()
