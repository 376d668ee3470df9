#include "medley/checkpoint/read_plan.h"

#include <fmt/format.h>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/boxes/cells.h"

namespace medley {

std::vector<BoxRead> plan_box_reads(const Layout& there,
                                    const Layout& needed,
                                    int64_t bytes_per_element,
                                    const std::string& place) {
  const Cells cells =
      cells_of({there, needed}, {place + ": as it is there", place + ": as it is needed"});
  std::vector<BoxRead> takes;
  for (const Cell& cell : cells.cells) {
    const int from = cell.boxes[0], to = cell.boxes[1];
    if (to == kNoBox) continue;
    if (from == kNoBox)
      throw Error(Blame::kCaller,
                  fmt::format("{}: found nothing of {} in factors {}, expected all elements",
                              place,
                              to_string(cell.box),
                              to_string(whole_box(cells.factors))));
    const auto runs = [&](const Layout& layout, int box) {
      return runs_in(
          layout.factors, layout.boxes[at(box)], cells.factors, cell.box, bytes_per_element);
    };
    takes.push_back({from, to, runs(there, from), runs(needed, to)});
  }
  return takes;
}

}  // namespace medley
