#!/usr/bin/env bash
# Makes `import medley` and the command `medley` work in .venv, straight from this working tree.
set -euo pipefail
cd "$(dirname "$0")/.."
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$PWD/python" >"$site/medley.pth"
cat >.venv/bin/medley <<END
#!$PWD/.venv/bin/python
import sys

from medley.cli import command

sys.exit(command())
END
chmod +x .venv/bin/medley
