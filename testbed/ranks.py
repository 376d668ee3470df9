"""The environment that torchrun would set. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

MASTER_PORT = 29500
# Keeps allocated memory. In a virtual machine the first touch of a page costs microseconds, and
# glibc returns and reallocates large blocks, depending on earlier work. The same convolution took 8
# or 1.2 ms, an activation of 63 MB 229 or 14 ms.
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


def environments(devices: Sequence[str], master: str) -> list[dict[str, str]]:
    """Returns the variables of every rank. `devices`: their names, such as fast/0/1 for the second
    device of a node. `master`: address of the first. Each device is alone in its namespace, but
    ranks within a node count as on one machine."""
    of = [name.rsplit("/", 1)[0] for name in devices]
    nodes = list(dict.fromkeys(of))
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(devices)),
            "LOCAL_RANK": str(of[:rank].count(node)),
            "LOCAL_WORLD_SIZE": str(of.count(node)),
            "GROUP_RANK": str(nodes.index(node)),
            "GROUP_WORLD_SIZE": str(len(nodes)),
            "MASTER_ADDR": master,
            "MASTER_PORT": str(MASTER_PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
            "TP_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **KEEP_MEMORY,
        }
        for rank, node in enumerate(of)
    ]
