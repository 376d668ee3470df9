"""The list of tuned constants has each one of the planner's modules, and may not grow."""

from __future__ import annotations

import check_constants

SOURCE = """
constexpr int kTried = 8;      // candidates
constexpr size_t kFew = 2, kMany = 6, kMoreRoom = 3;
  inline constexpr std::array kPrices{0.0, 1.0};
constexpr int64_t kNever = 1 << 30;
const int kPlain = 3;
"""


def test_finds_all_constants_but_fixed_ones() -> None:
    assert check_constants.names(SOURCE) == [
        (2, "kTried"),
        (3, "kFew"),
        (3, "kMoreRoom"),
        (4, "kPrices"),
    ]


def test_there_are_no_more_than_the_limit() -> None:
    found = check_constants.constants()
    assert len(found) == check_constants.LIMIT, "lower the limit where constants go"
    assert {place.split("/")[1] for place, _ in found} == set(check_constants.MODULES)
