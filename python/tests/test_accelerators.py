"""Detection of GPUs with kernels, and the devices that the processes of a job take."""

import pytest

from medley.run import accelerators
from medley.run.accelerators import Found, backend, choose, has_kernels

NAMES = ["fast/0/0", "slow/0/0"]
GPU = ["A100", "T4"]
CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    "capability, expected",
    [((6, 0), False), ((6, 1), False), ((7, 0), False), ((7, 5), True), ((8, 9), True)]
    + [((8, 7), True), ((9, 0), True), ((10, 3), True), ((12, 1), True), ((13, 0), True)],
)
def test_a_wheel_has_kernels_for_the_same_major_version_or_by_ptx(capability, expected):
    assert has_kernels(capability, CU130) is expected


def test_architectures_with_a_letter_and_those_of_other_makers():
    assert has_kernels((9, 0), ["sm_90a"])
    assert not has_kernels((9, 0), ["gfx90a", "sm_80"])


def test_a_card_without_kernels_is_named():
    text = accelerators.no_kernels(1, "Tesla V100", (7, 0), CU130)
    assert text.startswith("cuda:1 (Tesla V100, compute capability 7.0): torch ")
    assert "only for sm_75, sm_80" in text
    assert accelerators.no_kernels(1, "A100", (8, 0), CU130) == ""


def test_processes_without_gpus_run_on_processors():
    assert choose(NAMES, GPU, [Found("a", 0, [], []), Found("b", 0, [], [])]) == ["cpu", "cpu"]


def test_devices_that_are_processors_leave_the_gpus_alone():
    assert choose(NAMES, ["CPU", "CPU"], [Found("a", 0, ["u"], [])] * 2) == ["cpu", "cpu"]


def test_each_process_takes_the_gpu_of_its_local_rank():
    found = [Found("a", 0, ["u", "v"], []), Found("a", 1, ["u", "v"], [])]
    assert choose(NAMES, GPU, found) == ["cuda:0", "cuda:1"]
    apart = [Found("a", 0, ["u"], []), Found("b", 0, ["v"], [])]
    assert choose(NAMES, GPU, apart) == ["cuda:0", "cuda:0"]


def test_a_process_that_sees_its_own_gpu_only_takes_it():
    assert (
        choose(NAMES, GPU, [Found("a", 0, ["u"], []), Found("a", 1, ["v"], [])]) == ["cuda:0"] * 2
    )


def test_cpu_with_gpu_and_gpus_of_two_vendors_talk_through_the_hosts():
    found = [Found("a", 0, ["u"], []), Found("b", 0, ["v"], [], "ROCm")]
    assert choose(NAMES, ["A100", "CPU"], [found[0]] * 2) == ["cuda:0", "cpu"]
    assert backend(["cuda:0", "cpu"], [found[0]] * 2) == "gloo"
    assert backend(choose(NAMES, ["A100", "MI300X"], found), found) == "gloo"
    assert backend(["cuda:0", "cuda:0"], [found[0]] * 2) == "nccl"
    assert backend(["cuda:0", "cuda:0"], [found[0]] * 2, "gloo") == "gloo"
    assert backend(["cpu", "cpu"], [found[0]] * 2) == "gloo"
    with pytest.raises(ValueError, match="expected gloo for GPUs of CUDA and processors"):
        backend(["cuda:0", "cpu"], [found[0]] * 2, "nccl")


def test_processes_share_a_gpu_only_where_that_is_asked_for():
    found = [Found("a", 0, ["u"], []), Found("a", 1, ["u"], [])]
    assert choose(NAMES, GPU, found, shared=True) == ["cuda:0", "cuda:0"]


@pytest.mark.parametrize(
    "kinds, found, says",
    [
        (GPU, [Found("a", 0, ["u"], []), Found("b", 0, [], [])], r"none for slow/0/0 \(on b\)"),
        (GPU, [Found("a", 0, ["u"], []), Found("a", 1, ["u"], [])], "would both take cuda:0 of a"),
        (
            GPU,
            [Found("a", 0, ["u"], ["cuda:0 (V100): no kernels"]), Found("b", 0, ["v"], [])],
            r"fast/0/0 on a: cuda:0 \(V100\): no kernels",
        ),
    ],
)
def test_impossible_setups_are_refused_with_an_error(kinds, found, says):
    with pytest.raises(ValueError, match=says):
        choose(NAMES, kinds, found)
