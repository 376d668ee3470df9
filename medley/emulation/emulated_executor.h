#pragma once

// Makes an executor take the time and the memory of an emulated kind of device. Ops run for real in
// the inner executor; before they do, the device's compute clock moves by the time that they take
// on the kind. Decorates any executor; one per device, used by its thread only.

#include <deque>
#include <optional>

#include "medley/cost/cost_model.h"
#include "medley/emulation/emulated_transport.h"
#include "medley/emulation/hidden_truth.h"
#include "medley/emulation/memory_meter.h"
#include "medley/program/lanes.h"
#include "medley/runtime/executor.h"

namespace medley {

struct EmulatedExecutorOptions {
  HiddenTruth truth;
  HostDelay delay;
  const CostModel* measured = nullptr;  // times of ops, instead of the truth; outlives the executor
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
  std::vector<std::vector<Buffer>> combine(
      const Relay& relay, DType dtype, const std::vector<std::vector<Buffer>>& inputs) override {
    return inner_.combine(relay, dtype, inputs);
  }
  std::vector<std::vector<Buffer>> combine(CommunicationKind kind,
                                           Reduce reduce,
                                           const std::vector<std::vector<Buffer>>& inputs,
                                           const std::vector<Lengths>& lengths) override;

  const MemoryMeter& memory() const { return *memory_; }

 private:
  class EmulatedFrame;
  class EmulatedSegment;
  // Storage of the inputs and outputs of a communication that has been posted and not awaited.
  struct InFlight {
    MemoryMeter::Slots inputs, outputs;
  };
  // Where this device is in the calls of a stage: which communication the next read is for, and
  // which micro-batch moves in next.
  struct Progress {
    explicit Progress(const LoweredStage& stage);
    struct Posted {
      size_t communication;
      int microbatch;
      size_t before;  // events of the step
    };
    std::vector<Posted> posts;  // of one step
    size_t next_post = 0, next_input = 0;
    std::map<ValueId, std::pair<size_t, size_t>> outputs;  // -> communication, place in its outputs
    std::vector<std::deque<InFlight>> in_flight;           // [communication], the oldest first
    // Of transfers. A step is told from the next by its events: segments, posts and receipts.
    size_t events = 0, events_left = 0;                    // of a step
    std::map<int, std::deque<MemoryMeter::Held>> sending;  // by lane, the oldest first
    Receiving<MemoryMeter::Held> receiving;
    std::vector<std::vector<std::pair<size_t, size_t>>> receipts;  // [communication] (call, step)
    std::vector<size_t> next_receipt;                              // [communication]
    std::vector<Posted> undecided;  // all-reduces that may turn out to happen in place
    std::vector<int> order;         // in which micro-batches begin
    std::map<ValueId, MemoryMeter::Slots> batch;  // what has not moved in yet, the next one last
  };

  Frames inner_frames(Frames frames) const;
  MemoryMeter::Held& slot(const LoweredStage& stage, Frames frames, ValueId value) const;
  int64_t bytes_of(const LoweredStage& stage, ValueId value, int microbatch) const;
  size_t place_in(const LoweredStage& stage) const;  // of this device, in its mesh
  void index(const LoweredStage& stage);
  void begin_step(const LoweredStage& stage);
  void end_event(const LoweredStage& stage);
  void note_receiving_posts(const LoweredStage& stage);
  void receive_ahead(const LoweredStage& stage);
  MemoryMeter::Held move_in(const LoweredStage& stage, const Input& input);
  void take_outputs(const LoweredStage& stage, const Progress::Posted& posted);
  void decide(const LoweredStage& stage);
  void note_posted(const LoweredStage& stage, Frames frames, ValueId value);
  MemoryMeter::Held storage_for(const LoweredStage& stage, Frames frames, ValueId value);

  Executor& inner_;
  Ledger& ledger_;
  int device_;
  EmulatedExecutorOptions options_;
  std::shared_ptr<MemoryMeter> memory_;  // frames may outlive this
  MemoryMeter::Held workspace_;          // of kernels
  std::map<const LoweredStage*, Progress> progress_;
};

}  // namespace medley
