#!/usr/bin/env bash
# Installs the missing requirements of the build: Debian packages (as root; otherwise it prints the command and
# exits 3), and the wheels of requirements.txt plus PyTorch in .venv. Installs the commit-msg hook of git.
# --all: installs only requirements-all.txt in a complete environment. --docs: only requirements-docs.txt.
# --nightly: adds the requirements of `make nightly`. --testbed: adds those of the testbed
# (docs/howto/run_the_testbed.md).
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH=2.13.0
PYTHON=${PYTHON:-python3}

fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 3
}

is_installed() {
  dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

missing_packages() {
  local tool_and_package tool package
  local tools=(g++:g++ cmake:cmake ninja:ninja-build make:make git:git "$PYTHON:python3")
  [ "${1:-}" != --nightly ] || tools+=(clang-tidy:clang-tidy clang++:clang toulbar2:toulbar2)
  [ "${1:-}" != --nightly ] || tools+=(ip:iproute2 unshare:util-linux nsenter:util-linux)
  [ "${1:-}" != --testbed ] || tools+=(ip:iproute2 tc:iproute2 unshare:util-linux nsenter:util-linux)
  for tool_and_package in "${tools[@]}"; do
    tool=${tool_and_package%%:*} package=${tool_and_package##*:}
    command -v "$tool" >/dev/null || echo "$package"
  done
  for package in libgtest-dev libgmock-dev libfmt-dev nlohmann-json3-dev libyaml-cpp-dev libssl-dev \
      libcli11-dev libbenchmark-dev coinor-libclp-dev coinor-libcbc-dev; do
    is_installed "$package" || echo "$package"
  done
  if [ "${1:-}" = --nightly ]; then
    for package in libclang-rt-dev libsimgrid-dev; do
      is_installed "$package" || echo "$package"
    done
  fi
  # Tests the interpreter itself, because it may come from another source than dpkg.
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  "$PYTHON" -c 'import os, sysconfig
os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null || echo python3-dev
}

install_packages() {
  local packages command
  packages=$(missing_packages "$@" | sort -u | tr '\n' ' ')
  [ -n "$packages" ] || return 0
  command="apt-get update && apt-get install -y --no-install-recommends $packages"
  command -v apt-get >/dev/null || fail "these packages (Debian's names) are missing: $packages"
  [ "$(id -u)" = 0 ] || fail "as root, run: $command"
  DEBIAN_FRONTEND=noninteractive bash -c "$command" || fail "this failed: $command"
}

# Optional: with this allocator, planning takes two thirds of the time.
install_allocator() {
  local package=libmimalloc-dev
  ! is_installed "$package" || return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    (apt-get update && apt-get install -y --no-install-recommends "$package") >/dev/null 2>&1 && return
  fi
  echo "setup: $package is missing: finding plans will take 1.5 times as long" >&2
}

# Installs the wheel with kernels for the GPUs of this machine. Without GPUs, installs the CPU wheel, which has a tenth
# of the size.
install_torch() {
  local pip=(.venv/bin/pip install --quiet --disable-pip-version-check --no-compile) wanted flavor
  wanted=$("$PYTHON" scripts/torch_wheel.py "$TORCH") || exit 3
  flavor=$(sed -nE 's/^[^ ]*\+([^ ]*).*/\1/p' <<<"$wanted")
  # Without GPUs, any installed wheel is sufficient.
  .venv/bin/python - "$TORCH" "${flavor:-cu130}" <<'END' 2>/dev/null && return
import sys
import torch
version, flavor = sys.argv[1:]
cuda = "cu" + (torch.version.cuda or "").replace(".", "")
sys.exit(torch.__version__.split("+")[0] != version or flavor not in ("cpu", cuda))
END
  .venv/bin/pip uninstall --quiet --yes torch 2>/dev/null || true  # pip takes +cpu for what is wanted
  if [ "$flavor" != cpu ]; then
    # shellcheck disable=SC2086  # several words
    "${pip[@]}" $wanted
    return
  fi
  # If the index of this machine has the wheel, PyTorch's index may be unreachable.
  "${pip[@]}" "torch==$TORCH+cpu" 2>/dev/null ||
    "${pip[@]}" --retries 1 --timeout 20 $wanted 2>/dev/null ||
    "${pip[@]}" "torch==$TORCH"
}

install_wheels() {
  .venv/bin/pip install --quiet --disable-pip-version-check --no-compile "$@" || fail "pip could not install $*"
}

# Installs the wheels of a requirements file into a folder of their own, without dependencies.
install_apart() {
  .venv/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps --upgrade --target ".venv/$1" \
    -r "requirements-$1.txt" 2>/dev/null || fail "pip could not install -r requirements-$1.txt"
}

# Installs the packages of the public models in benchmarks/zoo into a folder of their own.
install_zoo() {
  local pip=(.venv/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps --upgrade --target .venv/zoo)
  local flavor vision
  install_apart zoo
  # torchvision has kernels for one flavour of PyTorch. If that flavour is unavailable, benchmarks/zoo/boxes.py replaces
  # them.
  flavor=$(.venv/bin/python -c 'import torch; print(torch.__version__.partition("+")[2])')
  vision=$(sed -n 's/^torchvision==//p' requirements-zoo.txt)
  [ -z "$flavor" ] || "${pip[@]}" "torchvision==$vision+$flavor" 2>/dev/null ||
    "${pip[@]}" --retries 1 --timeout 20 "torchvision==$vision+$flavor" \
      --index-url "https://download.pytorch.org/whl/$flavor" 2>/dev/null || true
}

if [ "${1:-}" = --all ]; then
  install_wheels -r requirements.txt -r requirements-all.txt
  exit
fi
if [ "${1:-}" = --docs ]; then
  [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
  install_wheels -r requirements-docs.txt
  exit
fi
install_packages "$@"
install_allocator
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or newer is needed"
[ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
install_torch || fail "pip could not install torch==$TORCH"
install_wheels -r requirements.txt
[ "${1:-}" != --nightly ] || install_wheels -r requirements-docs.txt
"$PYTHON" scripts/check_prose.py --install-hook
[ "${1:-}" != --nightly ] || { install_zoo && install_apart deploy; }
