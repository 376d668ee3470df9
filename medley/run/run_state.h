#pragma once

// The state of a run in checkpoints: this process's part of writing one beside training, and of
// taking over one that any other plan has written. Knows nothing of the other processes, nor of
// when a checkpoint is complete.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "medley/base/files.h"
#include "medley/checkpoint/deal.h"
#include "medley/checkpoint/manifest.h"
#include "medley/run/run.h"

namespace medley {

// Writes the files of this process's devices on a thread of its own, which works only where no
// other thread wants to. The state is that of when this was made: it holds the tensors, and whoever
// would change one that another holds makes a copy first (kernels/update.cpp). So until it is done
// there is up to one more copy of what it writes (held_bytes() of medley/checkpoint/deal.h), and
// from then on as much memory for the copies that the next one makes needed
// (kernels/spare_copies.h). It takes `spread` for it, or as long as it needs, if that is longer:
// where all cores compute, what it takes is taken from the steps, and by so much less from each as
// there are more of them.
class StateWriter {
 public:
  // `dealt`: of the program of the run. The names of files begin with `prefix`. Requires: between
  // steps; `files` outlives this.
  StateWriter(Run& run,
              const ProgramDeal& dealt,
              Files& files,
              const std::string& folder,
              std::chrono::nanoseconds spread = {},
              const std::string& prefix = "");
  ~StateWriter() { abandon(); }

  // A file, and its place among those of all processes (Deal::writers).
  using Written = std::vector<std::pair<int, StoredFile>>;

  bool is_done() const;
  // From now on the calling thread writes: does the next piece of what is left, and returns whether
  // nothing is.
  bool next();
  Written finish();  // does all of it; throws what went wrong
  // Leaves it as it is, and holds nothing any more. Waits for a piece that is being written.
  void abandon();
  // That copies of all it holds take, beyond what is kept for them.
  int64_t bytes() const { return bytes_; }

 private:
  struct Work;

  int64_t bytes_ = 0;
  std::shared_ptr<Work> work_;
};

// Whether a checkpoint is one of what the run keeps: require_match() of medley/checkpoint/match.h.
void require_match(Run& run,
                   const std::string& folder,
                   const Manifest& manifest,
                   bool parameters_only);

// A run, and what it finds in a checkpoint: all of it, or of several runs its part (part_of()), the
// names of whose state begin with a prefix there.
struct LoadedRun {
  Run* run = nullptr;
  Manifest part;
  std::string prefix;
};

// Reads what the devices of this process need into memory first and, only when all of it is right,
// gives it to them. `parameters_only`: the optimizers start anew. Throws Error(kCaller) as
// read_checkpoint() does; the runs are then as they were. Requires: require_match().
void load_state(const std::vector<LoadedRun>& runs,
                Files& files,
                const std::string& folder,
                const Manifest& manifest,
                bool parameters_only);

}  // namespace medley
