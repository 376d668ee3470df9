"""Files: nothing that exists is lost, whatever `-o` names and whenever a write fails."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch

from medley.files import read_text, require_writable, whole_file, write_atomically
from medley.weights_file import write_weights


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_devices_and_pipes_are_written_to(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    write_atomically(f"/dev/fd/{writer}", "to the pipe")
    assert os.read(reader, 100) == b"to the pipe"
    os.close(reader)
    os.close(writer)
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"/full: cannot be written: No space left on device$"):
        write_atomically(full, "x")
    assert Path("/dev/full").is_char_device()
    assert names(tmp_path) == ["full"]


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "old").write_text("old")
    (tmp_path / "link").symlink_to("data/old")
    (tmp_path / "dangling").symlink_to("data/absent")
    (tmp_path / "loop").symlink_to("loop")
    write_atomically(tmp_path / "link", "new")
    write_atomically(tmp_path / "dangling", "made")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "data" / "old").read_text() == "new"
    assert (tmp_path / "data" / "absent").read_text() == "made"
    with pytest.raises(OSError, match=r"/loop: cannot be written: Too many levels"):
        write_atomically(tmp_path / "loop", "x")


def test_an_error_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("old")
    with (
        pytest.raises(OSError, match=r"/plan\.json: cannot be written: No space"),
        whole_file(tmp_path / "plan.json") as file,
    ):
        file.write(b"half")
        raise OSError(28, "No space left on device")
    assert (tmp_path / "plan.json").read_text() == "old"
    assert names(tmp_path) == ["plan.json"]
    with pytest.raises(OSError, match=rf"^{tmp_path}: cannot be written: Is a directory$"):
        write_atomically(tmp_path, "x")


def test_new_files_follow_the_umask_and_old_ones_keep_their_mode(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    before = os.umask(0o027)
    try:
        write_atomically(path, "new")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    write_atomically(path, "newer")
    assert path.stat().st_mode & 0o777 == 0o604


# The first file is unlocked: its writer was killed. The second is being written.
def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    dead = tmp_path / ".model.safetensors.0123456789abcdef.part"
    living = tmp_path / ".model.safetensors.fedcba9876543210.part"
    other = tmp_path / ".other.0123456789abcdef.part"
    for path in (dead, living, other):
        path.write_bytes(b"half")
    with open(living, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_atomically(tmp_path / "model.safetensors", "whole")
    assert names(tmp_path) == sorted([living.name, other.name, "model.safetensors"])


def test_several_write_one_file(tmp_path: Path) -> None:
    texts = [str(i) * 100_000 for i in range(8)]
    threads = [
        threading.Thread(target=write_atomically, args=(tmp_path / "x", text)) for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "x").read_text() in texts
    assert names(tmp_path) == ["x"]


def test_endless_iterators_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    for path, found in (
        ("/dev/zero", "found a device, expected a file"),
        (tmp_path / "pipe", "found a pipe, expected a file"),
        (tmp_path / "sparse", "found 1099511627776 bytes or more, expected at most 268435456"),
        (tmp_path, "cannot be read: Is a directory"),
    ):
        with pytest.raises(ValueError, match=f"^{path}: {found}$"):
            read_text(path)
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    assert read_text(f"/dev/fd/{reader}") == "text"
    os.close(reader)


@pytest.mark.parametrize("what", ["pipe", "/dev/zero"])
def test_clusters_and_weights_are_not_read_from_what_may_not_end(tmp_path: Path, what: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "model.safetensors").symlink_to(what)
    script = f"""
import pathlib, torch
from medley.cluster import load_cluster
from medley.model_files import read_model
layer = torch.nn.Linear(1, 1)
for read in (lambda: load_cluster({what!r}), lambda: read_model(pathlib.Path(), layer)):
    try:
        read()
    except ValueError as error:
        print(error)
"""
    done = subprocess.run(  # may wait for ever, or take all memory
        [sys.executable, "-c", script],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (30, 30)),
    )
    kind = "pipe" if what == "pipe" else "device"
    assert done.stdout.splitlines() == [
        f"{what}: found a {kind}, expected a file",
        "model.safetensors: found a pipe, a device or a folder, expected a file",
    ]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "out", Path("/proc/out")):
        with pytest.raises(OSError, match=f"^{path}: cannot be written: "):
            require_writable(path)
    require_writable(tmp_path / "a" / "b")
    assert names(tmp_path) == ["file"]
    with pytest.raises(OSError, match=r"/a: found \d+ free bytes, expected at least 1152921504"):
        require_writable(tmp_path / "a", 1 << 60)


def test_weights_are_read_by_safetensors(tmp_path: Path) -> None:
    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64]
    dtypes += [torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]
    tensors = {str(dtype): torch.arange(5).to(dtype) for dtype in dtypes}
    tensors |= {"empty": torch.empty(0, 3), "scalar": torch.tensor(3.0)}
    tensors["transposed, \u00e4"] = torch.arange(6.0).reshape(2, 3).T
    with whole_file(tmp_path / "x") as file:
        write_weights(file, tensors)
    found = safetensors.torch.load_file(tmp_path / "x")
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor), name
    unknown = {"q": torch.zeros(1, dtype=torch.complex128)}
    with (
        pytest.raises(ValueError, match=r"q: found torch\.complex128, expected"),
        whole_file(tmp_path / "y") as file,
    ):
        write_weights(file, unknown)
    assert names(tmp_path) == ["x"]
