#pragma once

// Gives an executor the times and the memory of an emulated device type. Before each op runs in the
// inner executor, the device's compute clock moves by the op's time. Decorates any executor; one
// per device, used by its thread only.

#include <memory>

#include "medley/cost/cost_model.h"
#include "medley/emulation/emulated_transport.h"
#include "medley/emulation/hidden_truth.h"
#include "medley/memory/liveness.h"
#include "medley/runtime/executor.h"

namespace medley {

struct EmulatedExecutorOptions {
  HiddenTruth truth;
  HostDelay delay;
  const CostModel* measured = nullptr;  // times of ops instead of the truth; outlives the executor
};

class EmulatedExecutor final : public Executor {
 public:
  // `device`: of the ledger's cluster. Requires: inner and ledger outlive this, the device has
  // joined the ledger before anything runs.
  EmulatedExecutor(Executor& inner,
                   Ledger& ledger,
                   int device,
                   EmulatedExecutorOptions options = {});

  std::unique_ptr<Frame> make_frame(const LoweredStage& stage) override;
  std::unique_ptr<PreparedSegment> prepare(const LoweredStage& stage,
                                           const Segment& segment,
                                           const std::vector<int64_t>& symbols) override;
  void run(PreparedSegment& segment, Frames frames) override;
  Buffer read(const LoweredStage& stage, Frames frames, ValueId value) override;
  void write(const LoweredStage& stage, Frames frames, ValueId value, Buffer buffer) override;
  bool follows() const override { return true; }
  void follow(const LoweredStage& stage, Frames frames, size_t call, int step) override;
  std::vector<std::vector<Buffer>> combine(
      const GradientSync& sync,
      DType dtype,
      const std::vector<std::vector<Buffer>>& inputs) override {
    return inner_.combine(sync, dtype, inputs);
  }
  std::vector<std::vector<Buffer>> combine(CommunicationKind kind,
                                           Reduce reduce,
                                           const std::vector<std::vector<Buffer>>& inputs,
                                           const std::vector<Lengths>& lengths) override {
    return inner_.combine(kind, reduce, inputs, lengths);
  }

  const MemoryMeter& memory() const { return *memory_; }

 private:
  class EmulatedFrame;
  class EmulatedSegment;

  Frames inner_frames(Frames frames) const;
  Liveness& liveness(const LoweredStage& stage, Frames frames) const;
  size_t place_in(const LoweredStage& stage) const;  // this device, in its mesh

  Executor& inner_;
  Ledger& ledger_;
  int device_;
  EmulatedExecutorOptions options_;
  std::shared_ptr<MemoryMeter> memory_;  // frames may outlive this
};

}  // namespace medley
