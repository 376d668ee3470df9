#pragma once

namespace medley {

// Gives the calling thread the lowest CPU and disk priority, for background work. This cannot be
// undone without privileges. Does nothing on systems without such priorities.
void run_behind_all_others();

}  // namespace medley
