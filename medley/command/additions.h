#pragma once

// The table of additions to verbs by modules above the command line.

#include "medley/cli/additions.h"

namespace medley {

const Additions& all_additions();

}  // namespace medley
