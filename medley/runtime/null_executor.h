#pragma once

// An executor without computing: a tensor is its type. Checks without data that every operand
// exists and has the program's size, so that a wrong `dies` or length shows without PyTorch. Knows
// nothing of communication.

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

// Returns the time of an op on a device with this table.
using OpTime = std::function<Nanoseconds(
    const LoweredStage& stage, OpId op, const std::vector<int64_t>& symbols)>;

class NullExecutor : public Executor {
 public:
  // Runs take no time.
  NullExecutor() = default;
  // Sleeps in each segment for the sum of its ops' times. Requires: `clock` outlives this.
  NullExecutor(OpTime time, Clock& clock) : time_(std::move(time)), clock_(&clock) {}

  std::unique_ptr<Frame> make_frame(const LoweredStage& stage) override;
  std::unique_ptr<PreparedSegment> prepare(const LoweredStage& stage,
                                           const Segment& segment,
                                           const std::vector<int64_t>& symbols) override;
  void run(PreparedSegment& segment, Frames frames) override;
  Buffer read(const LoweredStage& stage, Frames frames, ValueId value) override;
  void write(const LoweredStage& stage, Frames frames, ValueId value, Buffer buffer) override;
  std::vector<std::vector<Buffer>> combine(const GradientSync& sync,
                                           DType dtype,
                                           const std::vector<std::vector<Buffer>>& inputs) override;
  std::vector<std::vector<Buffer>> combine(CommunicationKind kind,
                                           Reduce reduce,
                                           const std::vector<std::vector<Buffer>>& inputs,
                                           const std::vector<Lengths>& lengths) override;

  // Counts since construction: `prepared` segments, and `run` ops.
  int64_t num_prepared() const { return num_prepared_; }
  int64_t num_run() const { return num_run_; }

 private:
  OpTime time_;
  Clock* clock_ = nullptr;
  std::atomic<int64_t> num_prepared_ = 0, num_run_ = 0;
};

// Returns the number of filled slots of a frame, for tests of freeing.
int64_t num_values(const Frame& null_frame);

}  // namespace medley
