#pragma once

namespace medley {

// From now on the calling thread computes hardly where others want to, and uses disks only where no
// other does: for work that nobody waits for. It cannot be taken back without privileges. Where a
// system does not know such threads, nothing happens.
void run_behind_all_others();

}  // namespace medley
