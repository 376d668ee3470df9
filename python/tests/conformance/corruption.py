"""Wrong instances made of a right one: a lock dropped, labels swapped, linearity added."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from op_case import OpCase

from medley import _core

Instance = _core.Instance

# Kernels that crash by dividing by a number of elements, or write at an index without a bounds
# check.
_UNCHECKED = (
    "batch_norm",
    "lu_solve",
    "unfold_backward",
    "adaptive_max_pool2d_backward",
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
)


def _changed(instance: Instance, change: Callable[[Instance], None]) -> Instance:
    copy = instance.copy()
    change(copy)
    return copy


def _unlocked(instance: Instance, index: int) -> Instance:
    def change(copy: Instance) -> None:
        labels = copy.labels
        labels[index].locked = labels[index].composite = False
        copy.labels = labels

    return _changed(instance, change)


def _drop_locks(case: OpCase, instance: Instance) -> Iterator[tuple[str, Instance]]:
    if any(name in case.op for name in _UNCHECKED):
        return
    for index, label in enumerate(instance.labels):
        if label.locked and label.size != "0":
            yield f"without the lock of {label.name}", _unlocked(instance, index)


def _add_linearity(case: OpCase, instance: Instance) -> Iterator[tuple[str, Instance]]:
    floating = [x is not None and x.is_floating_point() for x in case.in_slots(case.operands())]
    read = [f and not s for f, s in zip(floating, instance.shape_only, strict=True)]
    groups = [[i] for i, each in enumerate(read) if each]
    if len(read) == 2 and all(read):
        groups.append([0, 1])
    for group in groups:
        if group not in instance.linear:
            linear = [*instance.linear, group]
            text = "+".join(map(str, group))
            yield f"linear {text}", _changed(instance, lambda c, v=linear: setattr(c, "linear", v))


def _change_absent(case: OpCase, instance: Instance) -> Iterator[tuple[str, Instance]]:
    others = {
        _core.Absent.SUM: [_core.Absent.MAX, _core.Absent.UNAFFECTED],
        _core.Absent.MAX: [_core.Absent.SUM, _core.Absent.UNAFFECTED],
        _core.Absent.UNAFFECTED: [_core.Absent.SUM],  # its maximum is the same
    }
    for j, by_label in enumerate(instance.absent):
        carried = {label for labels in instance.results[j] for label in labels}
        for index, absent in enumerate(by_label):
            label = instance.labels[index]
            if label.locked or index in carried or case.result_types[j] == "none":
                continue
            for other in others[absent]:
                wrong = [list(row) for row in instance.absent]
                wrong[j][index] = other
                yield (
                    f"{label.name} {other.name} in result {j}",
                    _changed(instance, lambda c, v=wrong: setattr(c, "absent", v)),
                )


def _swap_labels(case: OpCase, instance: Instance) -> Iterator[tuple[str, Instance]]:
    for field in ("operands", "results"):
        tensors = getattr(instance, field)
        for i, dims in enumerate(tensors):
            free = [
                d
                for d, labels in enumerate(dims)
                if labels and not any(instance.labels[label].locked for label in labels)
            ]
            if len(free) < 2:
                continue
            a, b = free[:2]
            wrong = [[list(labels) for labels in each] for each in tensors]
            wrong[i][a], wrong[i][b] = wrong[i][b], wrong[i][a]
            yield (
                f"labels {a} and {b} of {field[:-1]} {i} swapped",
                _changed(instance, lambda c, f=field, v=wrong: setattr(c, f, v)),
            )


def corruptions(case: OpCase, instance: Instance) -> Iterator[tuple[str, Instance]]:
    """Yields (corruption, instance)."""
    for make in (_drop_locks, _add_linearity, _change_absent, _swap_labels):
        yield from make(case, instance)
