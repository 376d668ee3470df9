#pragma once

// The interface that runs ops. Real: the ATen dispatcher (medley/executor). Fake: null (shapes
// only). Emulation decorates either.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "medley/program/program.h"

namespace medley {

// An opaque tensor; shares ownership.
using Buffer = std::shared_ptr<void>;

// The values of a device: one slot per value of the local graph. kRun and kStep values have one
// frame, kMicrobatch values one frame per micro-batch in flight. Only an executor creates and reads
// frames.
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
  // Resolves handles, constants and sizes. `symbols`: the table of this device and micro-batch.
  // Both outlive the result.
  virtual std::unique_ptr<PreparedSegment> prepare(const LoweredStage& stage,
                                                   const Segment& segment,
                                                   const std::vector<int64_t>& symbols) = 0;
  // Runs the segment and frees dying values. Throws Error naming the op.
  virtual void run(PreparedSegment& segment, Frames frames) = 0;
  // Returns null for an empty slot.
  virtual Buffer read(const LoweredStage& stage, Frames frames, ValueId value) = 0;
  virtual void write(const LoweredStage& stage, Frames frames, ValueId value, Buffer buffer) = 0;
  // Whether follow() is called outside of segments: when a call begins (step -1), before its posts
  // and waits (`step` of its steps), and at its end (their number).
  virtual bool follows() const { return false; }
  virtual void follow(const LoweredStage& /*stage*/, Frames, size_t /*call*/, int /*step*/) {}
  // Computes a communication, for the in-process transport: inputs[device][tensor] ->
  // outputs[device][tensor]. `elements[device]` are its send/receive lengths.
  struct Lengths {
    std::vector<int64_t> send, receive;
  };
  virtual std::vector<std::vector<Buffer>> combine(CommunicationKind kind,
                                                   Reduce reduce,
                                                   const std::vector<std::vector<Buffer>>& inputs,
                                                   const std::vector<Lengths>& lengths) = 0;
  // Computes a gradient sync: inputs[member] are the tensors of which it gives elements, outputs
  // those of which it takes elements.
  virtual std::vector<std::vector<Buffer>> combine(
      const GradientSync& sync, DType dtype, const std::vector<std::vector<Buffer>>& inputs) = 0;
};

}  // namespace medley
