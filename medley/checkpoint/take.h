#pragma once

// What somebody who needs boxes of a value takes from those who have boxes of it, whatever plans
// have divided either. Knows neither files nor devices: the boxes that are there may lie in a
// checkpoint, in this process's memory or with a peer.

#include <string>
#include <vector>

#include "medley/boxes/layout.h"
#include "medley/boxes/runs.h"

namespace medley {

// Bytes that go from one box to another, both kept as row-major tensors of their own: as many in
// the runs of one as in those of the other, in the same order.
struct Take {
  int from = 0, to = 0;  // boxes of the two layouts
  Runs in_from, in_to;
};

// Together the takes fill every box of `needed`, each element once. A box with several owners is
// taken from one `from`; who that is, the caller decides. Throws Error(kCaller) "<place>: ..." if
// the layouts are of different sizes, if no factors fit both, or if nobody has some of a box.
std::vector<Take> takes_of(const Layout& there,
                           const Layout& needed,
                           int64_t bytes_per_element,
                           const std::string& place);

}  // namespace medley
