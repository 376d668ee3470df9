#pragma once

// The executor that computes nothing: a tensor is its type. It checks what an executor can check
// without data (every operand is there and has the size that the program says), so that a wrong
// `dies` or a wrong length shows without PyTorch. Knows nothing of communication.

#include <atomic>
#include <functional>

#include "medley/base/clock.h"
#include "medley/runtime/executor.h"

namespace medley {

struct NullTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};
Buffer null_buffer(DType dtype, std::vector<int64_t> shape);

// How long an op takes on a device with this table.
using OpTime = std::function<Nanoseconds(
    const LoweredStage& stage, OpId op, const std::vector<int64_t>& symbols)>;

class NullExecutor : public Executor {
 public:
  // Runs take no time.
  NullExecutor() = default;
  // A run of a segment sleeps for the sum of the times of its ops. Requires: `clock` outlives this.
  NullExecutor(OpTime time, Clock& clock) : time_(std::move(time)), clock_(&clock) {}

  std::unique_ptr<Frame> make_frame(const LoweredStage& stage) override;
  std::unique_ptr<PreparedSegment> prepare(const LoweredStage& stage,
                                           const Segment& segment,
                                           const std::vector<int64_t>& symbols) override;
  void run(PreparedSegment& segment, Frames frames) override;
  Buffer read(const LoweredStage& stage, Frames frames, ValueId value) override;
  void write(const LoweredStage& stage, Frames frames, ValueId value, Buffer buffer) override;
  std::vector<std::vector<Buffer>> combine(const Relay& relay,
                                           DType dtype,
                                           const std::vector<std::vector<Buffer>>& inputs) override;
  std::vector<std::vector<Buffer>> combine(CommunicationKind kind,
                                           Reduce reduce,
                                           const std::vector<std::vector<Buffer>>& inputs,
                                           const std::vector<Lengths>& lengths) override;

  // Counts since construction. `prepared` counts segments, `run` counts ops.
  int64_t num_prepared() const { return num_prepared_; }
  int64_t num_run() const { return num_run_; }

 private:
  OpTime time_;
  Clock* clock_ = nullptr;
  std::atomic<int64_t> num_prepared_ = 0, num_run_ = 0;
};

// Returns how many slots of a frame are filled, for tests of what is freed when.
int64_t num_values(const Frame& null_frame);

}  // namespace medley
