#pragma once

// The copies that fill the needed boxes of a value from the available ones, whatever plans divided
// either. Knows neither files nor devices: boxes may be in a checkpoint, in this process's memory
// or on a peer.

#include <string>
#include <vector>

#include "medley/boxes/layout.h"
#include "medley/boxes/runs.h"

namespace medley {

// A copy from one box to another, both row-major tensors of their own. The runs of both have equal
// byte counts, in the same order.
struct BoxRead {
  int from = 0, to = 0;  // boxes of the two layouts
  Runs in_from, in_to;
};

// Returns copies that fill every box of `needed`, each element once. If a box has several owners,
// the caller chooses the source. Throws Error(kCaller) "<place>: ..." if the sizes differ, if no
// factors fit both, or if some elements have no source.
std::vector<BoxRead> plan_box_reads(const Layout& there,
                                    const Layout& needed,
                                    int64_t bytes_per_element,
                                    const std::string& place);

}  // namespace medley
