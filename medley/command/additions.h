#pragma once

// The table of additions to verbs by modules above the command line.

namespace medley {

struct Additions;

const Additions& all_additions();

}  // namespace medley
