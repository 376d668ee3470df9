#pragma once

// The state of a run in checkpoints: this process's part of writing one in parallel with training,
// and of loading one that any plan wrote. Knows nothing of the other processes, nor of when a
// checkpoint is complete.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "medley/base/files.h"
#include "medley/checkpoint/manifest.h"
#include "medley/checkpoint/write_plan.h"
#include "medley/run/run.h"

namespace medley {

// Writes the files of this process's devices on a low-priority thread, with the state at
// construction. It keeps the tensors, so any later change of one works on a copy
// (kernels/update.cpp). Until it is done there is up to one extra copy of the written values
// (held_bytes() of medley/checkpoint/write_plan.h). Afterwards as much memory stays for the copies
// of the next one (kernels/spare_copies.h). Writing takes `spread`, or longer if needed. If all
// cores compute, its time slows the steps; a larger `spread` slows each of them less.
class StateWriter {
 public:
  // `dealt`: of the run's program. File names begin with `prefix`. Requires: between steps; `files`
  // outlives this.
  StateWriter(Run& run,
              const ProgramWritePlan& planned,
              Files& files,
              const std::string& folder,
              std::chrono::nanoseconds spread = {},
              const std::string& prefix = "");
  ~StateWriter() { abandon(); }

  // Files with their indices into Deal::writers.
  using Written = std::vector<std::pair<int, StoredFile>>;

  bool is_done() const;
  // Makes the calling thread the writer: writes the next piece. Returns whether none is left.
  bool next();
  Written finish();  // writes the rest; throws any failure
  // Stops writing and releases the tensors. Waits for the current piece.
  void abandon();
  // Returns the bytes for copies of all kept tensors, beyond the spare memory.
  int64_t bytes() const { return bytes_; }

 private:
  struct Work;

  int64_t bytes_ = 0;
  std::shared_ptr<Work> work_;
};

// Checks a checkpoint against the run: require_match() of medley/checkpoint/match.h.
void require_match(Run& run,
                   const std::string& folder,
                   const Manifest& manifest,
                   bool parameters_only);

// A run and its content of a checkpoint: all of it, or its part (part_of()) if several runs share
// one, with a prefix for the names of its state.
struct LoadedRun {
  Run* run = nullptr;
  Manifest part;
  std::string prefix;
};

// Reads the values of this process's devices into memory, and sets them only if all are valid.
// `parameters_only`: the optimizers start anew. Throws Error(kCaller) as read_checkpoint() does;
// the runs are then unchanged. Requires: require_match().
void load_state(const std::vector<LoadedRun>& runs,
                Files& files,
                const std::string& folder,
                const Manifest& manifest,
                bool parameters_only);

}  // namespace medley
