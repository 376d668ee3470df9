"""Checks of the packages, interfaces and limits of this machine."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import sys
import time

from medley_extras.doctor.finding import FAILURE, OK, WARNING, Check, Finding


def _packages() -> list[Finding]:
    findings = [Finding("python", f"{platform.python_version()} ({sys.executable})")]
    for name, needed in (("torch", True), ("safetensors", True), ("transformers", False)):
        try:
            findings.append(Finding(name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            fix = f"pip install {name}" + ("" if needed else ", for models named hf:config.json")
            findings.append(Finding(name, "missing", FAILURE if needed else WARNING, fix))
    return findings


def _extensions() -> list[Finding]:
    findings = []
    for name in ("_core", "_runtime"):
        try:
            importlib.import_module(f"medley.{name}")
            findings.append(Finding(f"medley.{name}", "loads"))
        except ImportError as error:
            findings.append(
                Finding(f"medley.{name}", str(error).splitlines()[0], FAILURE, "make build")
            )
    return findings


def _processors() -> list[Finding]:
    usable = len(os.sched_getaffinity(0))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return [Finding("processors", f"{usable} usable, {pages / 2**30:.1f} GiB of memory")]


def _accelerators() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi") is None:
            return [Finding("gpus", "none; devices are CPUs or emulated")]
        return [
            Finding(
                "gpus",
                f"nvidia-smi is there, but torch {torch.__version__} sees none",
                WARNING,
                "install the CUDA wheel: pip install torch",
            )
        ]
    from medley.run import accelerators

    findings = [
        Finding("kernels", problem, FAILURE, "scripts/setup.sh installs a wheel that has them")
        for problem in accelerators.find().problems
    ]
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        text = f"{facts.name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        busy = free < total / 2
        findings.append(
            Finding(
                f"cuda:{number}",
                text,
                WARNING if busy else OK,
                "another process holds the memory: nvidia-smi names it" if busy else "",
            )
        )
    return findings


def _interfaces() -> list[Finding]:
    from medley.run import job

    chosen = job.interface()
    own = job.addresses()
    master = job.master()
    findings = [
        Finding("interfaces", ", ".join(f"{name} {address}" for name, address in own.items()))
    ]
    if chosen and any(name not in own for name in chosen.split(",")):
        fix = "unset GLOO_SOCKET_IFNAME, or set it to one of the interfaces above"
        findings.append(Finding("GLOO_SOCKET_IFNAME", f"{chosen}: no such interface", FAILURE, fix))
    else:
        towards = chosen or job.interface_towards(master)
        state = OK if towards else FAILURE
        fix = "" if towards else "set MASTER_ADDR to a host that this machine reaches"
        findings.append(Finding("interface used", f"{towards} towards {master}", state, fix))
    return findings


def _host_name() -> list[Finding]:
    name = socket.gethostname()
    try:
        return [Finding("host name", f"{name} is {socket.gethostbyname(name)}")]
    except OSError:
        fix = f"harmless here; if other tools complain: echo '127.0.0.1 {name}' >> /etc/hosts"
        return [Finding("host name", f"{name} leads nowhere", WARNING, fix)]


def _store() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        return []
    from medley.run.launch import serve_store

    begin = time.monotonic()
    store, _ = serve_store("doctor/", 5000)
    store.set("ping", "pong")
    answered = store.get("ping") == "pong"
    text = f"answers in {(time.monotonic() - begin) * 1e3:.0f} ms"
    if answered:
        return [Finding("store", text)]
    return [Finding("store", "does not answer", FAILURE, "allow connections to 127.0.0.1")]


def _limits() -> list[Finding]:
    import resource

    findings = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft >= 1024
    fix = "" if enough else "ulimit -n 4096"
    findings.append(Finding("open files", f"{soft} allowed", OK if enough else WARNING, fix))
    try:
        free = shutil.disk_usage("/dev/shm").free
        enough = free > 64 << 20
        fix = "" if enough else "give /dev/shm 64 MiB or more (docker run --shm-size=1g)"
        state = OK if enough else WARNING
        findings.append(Finding("shared memory", f"{free / 2**30:.1f} GiB free", state, fix))
    except OSError:
        findings.append(Finding("shared memory", "no /dev/shm", WARNING, "mount a tmpfs there"))
    return findings


CHECKS: list[Check] = [
    ("packages", _packages),
    ("extensions", _extensions),
    ("processors", _processors),
    ("accelerators", _accelerators),
    ("interfaces", _interfaces),
    ("host name", _host_name),
    ("store", _store),
    ("limits", _limits),
]
