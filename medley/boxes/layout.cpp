#include "medley/boxes/layout.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/boxes/cells.h"

namespace medley {
namespace {

bool is_cut(const AxisPlacement& axis) { return axis.holding == Holding::kSharded; }

// Returns the part of `whole`, an interval of its factor, on the device of this index on an axis.
IndexInterval piece_of(const IndexInterval& whole,
                       const std::vector<int64_t>& points,
                       int64_t devices,
                       int64_t device) {
  MEDLEY_CHECK_EQ(points.size(), at(devices) + 1);
  MEDLEY_CHECK_EQ(points.front(), 0);
  MEDLEY_CHECK_EQ(points.back(), whole.size());
  return {whole.begin + points[at(device)], whole.begin + points[at(device) + 1]};
}

[[noreturn]] void refuse_layout(const std::string& place, const std::string& what) {
  throw Error(Blame::kCaller, fmt::format("{}: {}", place, what));
}

void verify_box(const FactorSizes& factors, const Box& box, const std::string& place) {
  if (box.size() != factors.size())
    refuse_layout(
        place,
        fmt::format(
            "found {} intervals, expected {}, one for each factor", box.size(), factors.size()));
  for (size_t f = 0; f < factors.size(); ++f)
    if (box[f].begin < 0 || box[f].begin >= box[f].end || box[f].end > factors[f])
      refuse_layout(place,
                    fmt::format("factor {}: found [{}, {}), expected some of [0, {})",
                                f,
                                box[f].begin,
                                box[f].end,
                                factors[f]));
}

}  // namespace

std::vector<int64_t> points_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> points{0};
  for (int64_t length : lengths) points.push_back(points.back() + length);
  return points;
}

Layout layout_of(const FactorSizes& factors,
                 const Placement& placement,
                 const std::vector<int64_t>& mesh,
                 const std::vector<CutPoints>& points) {
  MEDLEY_CHECK(mesh.size() == 1 || mesh.size() == 2);
  MEDLEY_CHECK_EQ(placement.size(), mesh.size());
  // Adds an axis 1 of one device if there is none.
  const int64_t inner = mesh.size() > 1 ? mesh[1] : 1;
  const AxisPlacement inner_placement = mesh.size() > 1 ? placement[1] : replicated();
  Layout layout{factors, {}, {}, {}};
  for (int64_t i = 0; i < mesh[0]; ++i)
    for (int64_t j = 0; j < inner; ++j) {
      const int64_t first_identical =
          (is_cut(placement[0]) ? i * inner : 0) + (is_cut(inner_placement) ? j : 0);
      if (at(first_identical) < layout.box_of.size()) {
        layout.box_of.push_back(layout.box_of[at(first_identical)]);
        continue;
      }
      Box box = whole_box(factors);
      if (is_cut(placement[0])) {
        IndexInterval& cut = box.at(at(placement[0].position));
        cut = piece_of(cut, points.at(0).at(0), mesh[0], i);
      }
      if (is_cut(inner_placement)) {
        IndexInterval& cut = box.at(at(inner_placement.position));
        const bool is_nested = placement[0].cuts(inner_placement.position);
        cut = piece_of(cut, points.at(1).at(is_nested ? at(i) : 0), inner, j);
      }
      const bool is_empty = volume(box) == 0;
      layout.box_of.push_back(is_empty ? kNoBox : static_cast<int>(layout.boxes.size()));
      if (!is_empty) layout.boxes.push_back(std::move(box));
    }
  const auto is_sum = [](const AxisPlacement& axis, int64_t devices) {
    MEDLEY_CHECK(axis.holding != Holding::kPartialMax);
    return axis.holding == Holding::kPartialSum && devices > 1;
  };
  const bool outer_sum = is_sum(placement[0], mesh[0]), inner_sum = is_sum(inner_placement, inner);
  if (!outer_sum && !inner_sum) return layout;
  for (int64_t i = 0; i < mesh[0]; ++i)
    for (int64_t j = 0; j < inner; ++j)
      layout.term_of.push_back(
          static_cast<int>((outer_sum ? i : 0) * (inner_sum ? inner : 1) + (inner_sum ? j : 0)));
  return layout;
}

Layout layout_of(FactorSizes factors, const std::vector<Box>& box_of_device) {
  Layout layout{std::move(factors), {}, {}, {}};
  std::map<Box, int> known;
  for (const Box& box : box_of_device) {
    if (volume(box) == 0) {
      layout.box_of.push_back(kNoBox);
      continue;
    }
    const auto [place, is_new] = known.try_emplace(box, static_cast<int>(layout.boxes.size()));
    if (is_new) layout.boxes.push_back(box);
    layout.box_of.push_back(place->second);
  }
  return layout;
}

std::vector<std::vector<int>> devices_of(const Layout& layout) {
  std::vector<std::vector<int>> devices(layout.boxes.size());
  for (size_t d = 0; d < layout.box_of.size(); ++d)
    if (layout.box_of[d] != kNoBox) devices[at(layout.box_of[d])].push_back(static_cast<int>(d));
  return devices;
}

void verify(const Layout& layout, const std::string& place) {
  for (size_t f = 0; f < layout.factors.size(); ++f)
    if (layout.factors[f] < 0)
      refuse_layout(fmt::format("{}: factors[{}]", place, f),
                    fmt::format("found {}, expected no less than 0", layout.factors[f]));
  for (size_t b = 0; b < layout.boxes.size(); ++b)
    verify_box(layout.factors, layout.boxes[b], fmt::format("{}: boxes[{}]", place, b));
  const auto num_boxes = static_cast<int>(layout.boxes.size());
  for (size_t d = 0; d < layout.box_of.size(); ++d)
    if (layout.box_of[d] < kNoBox || layout.box_of[d] >= num_boxes)
      refuse_layout(fmt::format("{}: box_of[{}]", place, d),
                    fmt::format("found {}, expected one of {} boxes, or {} for none",
                                layout.box_of[d],
                                num_boxes,
                                kNoBox));
  if (!layout.term_of.empty() && layout.term_of.size() != layout.box_of.size())
    refuse_layout(
        fmt::format("{}: term_of", place),
        fmt::format(
            "found {} devices, expected {}, or none", layout.term_of.size(), layout.box_of.size()));
  for (size_t d = 0; d < layout.term_of.size(); ++d)
    if (layout.term_of[d] < 0)
      refuse_layout(fmt::format("{}: term_of[{}]", place, d),
                    fmt::format("found {}, expected no less than 0", layout.term_of[d]));
  cells_of({layout}, {place});
}

}  // namespace medley
