#pragma once

// The seam to whatever runs ops. Real: the ATen dispatcher (medley/executor). Fake: null (shapes
// only). Emulation decorates either.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "medley/program/program.h"

namespace medley {

// A tensor that the core cannot look into; shares ownership.
using Buffer = std::shared_ptr<void>;

// The values of a device: one slot per value of the local graph. kRun and kStep values live in one
// frame, kMicrobatch values in one frame per micro-batch in flight. Made and understood by an
// executor only.
class Frame {
 public:
  virtual ~Frame() = default;
};
struct Frames {
  Frame* run;         // kRun and kStep
  Frame* microbatch;  // kMicrobatch
};

class PreparedSegment {
 public:
  virtual ~PreparedSegment() = default;
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual std::unique_ptr<Frame> make_frame(const LoweredStage& stage) = 0;
  // Resolves handles, fills in constants and sizes. `symbols`: the table of this device and
  // micro-batch. Both outlive the result.
  virtual std::unique_ptr<PreparedSegment> prepare(const LoweredStage& stage,
                                                   const Segment& segment,
                                                   const std::vector<int64_t>& symbols) = 0;
  // Runs it. Frees what dies. Throws Error naming the op.
  virtual void run(PreparedSegment& segment, Frames frames) = 0;
  // A slot without a value is null.
  virtual Buffer read(const LoweredStage& stage, Frames frames, ValueId value) = 0;
  virtual void write(const LoweredStage& stage, Frames frames, ValueId value, Buffer buffer) = 0;
  // If an executor follows a device, it is told where the device is besides in segments: a call
  // begins (step -1), makes a post or a wait (`step` of its steps), or ends (their number).
  virtual bool follows() const { return false; }
  virtual void follow(const LoweredStage& /*stage*/, Frames, size_t /*call*/, int /*step*/) {}
  // What a communication computes, for the in-process transport: inputs[device][tensor] ->
  // outputs[device][tensor]. `elements[device]` are its send/receive lengths.
  struct Lengths {
    std::vector<int64_t> send, receive;
  };
  virtual std::vector<std::vector<Buffer>> combine(CommunicationKind kind,
                                                   Reduce reduce,
                                                   const std::vector<std::vector<Buffer>>& inputs,
                                                   const std::vector<Lengths>& lengths) = 0;
  // The same for a relay: inputs[member] are of those tensors of which it gives some, outputs of
  // those of which it takes some.
  virtual std::vector<std::vector<Buffer>> combine(
      const Relay& relay, DType dtype, const std::vector<std::vector<Buffer>>& inputs) = 0;
};

}  // namespace medley
