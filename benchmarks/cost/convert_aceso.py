"""Makes tests/data/published_op_times/times.csv from the op profiles published with Sailor.

It keeps the blocks of a transformer layer without communication. For blocks that end in an exchange
among tensor-parallel devices (variant "algo0" in the tables) it keeps times of one device only.

    python benchmarks/cost/convert_aceso.py SOURCE tests/data/published_op_times/times.csv

SOURCE is the folder with one folder per GPU type.
"""

import csv
import sys
from pathlib import Path

MODELS = ("OPT-350", "GPT-Neo-2.7", "OPT-30")
BATCHES = (1, 2, 4, 8)
DEGREES = (1, 2, 4)  # degrees of tensor parallelism
DIRECTIONS = {"forward": "forward-compute", "backward": "backward-compute"}
OUT_OF_MEMORY_US = 9_999_999.0  # how the tables write it
EXCHANGES = {
    ("enc-attention-qkv", "backward"),
    ("enc-attention-dense", "forward"),
    ("enc-MLP-GEMM-1", "backward"),
    ("enc-MLP-GEMM-2", "forward"),
}


def read(folder: Path, model: str, batch: int, degree: int) -> dict[str, dict[str, str]]:
    name = f"{model}_mbs{batch}_tp{degree}_algo0.csv"
    with (folder / "profiled-data-fp16" / name).open() as file:
        return {row["op_name"]: row for row in csv.DictReader(file)}


def time_us(
    tables: dict[tuple[int, int], dict[str, dict[str, str]]],
    op: str,
    direction: str,
    batch: int,
    degree: int,
) -> str:
    if degree > 1 and (op, direction) in EXCHANGES:
        return ""
    time = float(tables[batch, degree][op][DIRECTIONS[direction]])
    return "" if time <= 0 or time >= OUT_OF_MEMORY_US else f"{time:.0f}"


def main(source: Path, target: Path) -> None:
    columns = [(batch, degree) for degree in DEGREES for batch in BATCHES]
    with target.open("w") as out:
        header = ["device", "model", "block", "direction"]
        print(*header, *(f"b{batch}t{degree}" for batch, degree in columns), sep=",", file=out)
        for folder in sorted(path.parent for path in source.glob("*/profiled-data-fp16")):
            for model in MODELS:
                tables = {column: read(folder, model, *column) for column in columns}
                for op in tables[1, 1]:
                    if not op.startswith("enc-"):
                        continue
                    for direction in DIRECTIONS:
                        times = [time_us(tables, op, direction, *column) for column in columns]
                        print(folder.name, model, op, direction, *times, sep=",", file=out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
