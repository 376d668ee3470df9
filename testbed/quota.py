"""CPU quotas by control groups, of version 1 or 2, at the mount of the cpu controller. Groups are
named medley-<pid>-<start time>-<n> after the process that made them. A group without its process is
stale and is removed at the next start, because a killed process cannot remove it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from pathlib import Path

_NAME = re.compile(r"medley-(\d+)-(\d+)(-\d+)?")
_MOST_SHARES = {1: ("cpu.shares", "262144"), 2: ("cpu.weight", "10000")}


@dataclasses.dataclass(frozen=True)
class Controller:
    """The folder of groups, and the version of the interface."""

    root: Path
    version: int


def find_controller() -> Controller | None:
    """Returns the mounted cpu controller, or None."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, root, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            return Controller(Path(root), 1)
    for line in Path("/proc/mounts").read_text().splitlines():
        _, root, kind = line.split()[:3]
        if kind == "cgroup2":
            with contextlib.suppress(OSError):
                if "cpu" in (Path(root) / "cgroup.controllers").read_text().split():
                    return Controller(Path(root), 2)
    return None


def owner() -> str:
    """Returns the name of this process, which no later process has."""
    return f"{os.getpid()}-{_start_time(os.getpid())}"


def _start_time(pid: int) -> int | None:
    """Returns the start of a process in ticks since boot, or None without such a process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    except OSError:
        return None


def is_stale(name: str) -> bool:
    """Returns whether a name is one of ours and its process is gone."""
    found = _NAME.fullmatch(name)
    return found is not None and _start_time(int(found[1])) != int(found[2])


def create(controller: Controller, count: int) -> list[Path]:
    """Makes groups without a limit. Raises OSError where that is not permitted."""
    if controller.version == 2:
        _write(controller.root / "cgroup.subtree_control", "+cpu")
    groups = [controller.root / f"medley-{owner()}-{number}" for number in range(count)]
    for group in groups:
        group.mkdir()
        # All other processes wait, so that quotas are exact on a busy machine too.
        file, most = _MOST_SHARES[controller.version]
        _write(group / file, most)
    return groups


def limit(group: Path, quota_us: int, period_us: int) -> None:
    """Lets the processes of a group compute `quota_us` of every `period_us`; below 0: always."""
    if (group / "cpu.max").exists():
        _write(group / "cpu.max", f"{quota_us if quota_us >= 0 else 'max'} {period_us}")
        return
    # Shorter periods are only legal for matching quotas. Without a quota any period is legal.
    _write(group / "cpu.cfs_quota_us", "-1")
    _write(group / "cpu.cfs_period_us", str(period_us))
    _write(group / "cpu.cfs_quota_us", str(quota_us))


def enter(group: Path) -> None:
    """Puts the calling process into a group."""
    _write(group / "cgroup.procs", "0")


def throttled_periods(group: Path) -> tuple[int, int]:
    """Returns how many periods there were, and in how many the group used up its quota."""
    rows = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(rows["nr_periods"]), int(rows["nr_throttled"])


def remove(group: Path, patience: float = 2.0) -> None:
    """Removes a group once its processes are gone, which takes the kernel a moment after a kill."""
    end = time.monotonic() + patience
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def remove_stale(controller: Controller) -> list[str]:
    """Removes the groups of processes that are gone. Returns their names."""
    names = sorted(entry.name for entry in controller.root.iterdir() if is_stale(entry.name))
    for name in names:
        remove(controller.root / name)
    return names


def _write(file: Path, text: str) -> None:
    # One plain write: the files of control groups take no other.
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
