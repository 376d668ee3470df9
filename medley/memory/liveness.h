#pragma once

// Computes the live tensor bytes of a device over time: the rules by which the planner counts
// memory (memory.h) and the emulation detects overflow. Views, in-place updates and sums into an
// accumulator share the storage of their operand. An op's result may replace an operand that dies
// (ops/overwrite.h).
//
//   bytes  ^            ____                     saved values pile up over the forward calls and
//          |       ____/    \__     _            go in the backward calls
//          |  ____/            \___/ \__
//          |_/__________________________\____
//          |  parameters, optimizer, batch
//          +----------------------------------> calls
//
// A communication keeps its inputs until its wait, and its results from its post on. An all-reduce
// of one unshared tensor is done in place; one of several tensors travels as a copy. Received
// messages are stored from their post on, ahead of their use (lanes.h). Sent ones are stored until
// they are the oldest of too many. Knows nothing of allocators.

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "medley/program/frame_schedule.h"
#include "medley/program/lanes.h"

namespace medley {

enum class MemoryPart : uint8_t {
  kParameters,
  kBuffers,        // and scalars
  kOptimizer,      // its state
  kMasters,        // copies of the parameters in full precision
  kGradients,      // accumulated, and other values of a whole step
  kBatch,          // the inputs of all micro-batches
  kSaved,          // from forward calls to their backward calls
  kCommunication,  // in transit
  kTransient,      // the rest
  kWorkspaces,
};
inline constexpr size_t kNumMemoryParts = 10;
using MemoryParts = std::array<int64_t, kNumMemoryParts>;

// The memory of one device, which several programs may share.
class MemoryMeter {
 public:
  MemoryMeter() = default;
  MemoryMeter(std::string device, int64_t capacity)
      : device_(std::move(device)), capacity_(capacity) {}

  bool has_room(int64_t bytes) const { return bytes <= capacity_ - live_; }
  // Throws Error(kCaller) with device, `what`, needed and available bytes.
  [[noreturn]] void refuse(int64_t bytes, const std::string& what) const;
  void count(int64_t bytes) { live_ += bytes; }
  void note_peak() { peak_ = std::max(peak_, live_); }
  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }

 private:
  std::string device_;
  int64_t capacity_ = std::numeric_limits<int64_t>::max(), live_ = 0, peak_ = 0;
};

// Storage that several values may share; it is alive while any value uses it.
class Storages {
 public:
  struct Item {
    int64_t bytes;
    MemoryPart part;
    bool computed;  // kernels may overwrite it; part of nothing else
    int holders = 1;
  };
  explicit Storages(MemoryMeter& meter) : meter_(&meter) {}
  Storages(const Storages&) = delete;
  Storages& operator=(const Storages&) = delete;
  ~Storages();

  int add(const Item& item);
  int hold(int storage);
  void drop(int& storage);  // sets `storage` to kNone
  void move_to(int storage, MemoryPart part);
  const Item& operator[](int storage) const { return items_[at(storage)]; }
  const MemoryParts& parts() const { return parts_; }

 private:
  void count(const Item& item, int64_t sign);
  MemoryMeter* meter_;
  std::vector<Item> items_;
  std::vector<int> free_;  // free indices in it
  MemoryParts parts_{};
};

// Data that is equal for all devices of a stage.
struct LivenessFacts {
  explicit LivenessFacts(const LoweredStage& stage);
  struct OfOp {
    std::vector<ValueId> aliases;           // [result] operand with the same storage, or kNone
    std::array<ValueId, 2> overwritable{};  // operands that the result may overwrite
    bool accumulates = false;
  };
  const LoweredStage& stage;
  std::vector<OfOp> ops;
  std::vector<bool> saved;      // [value] lives from forward to backward function
  std::vector<size_t> symbols;  // symbols in sizes
  FrameSchedule schedule;
};

// [value] bytes on one device per micro-batch; equal micro-batches share one table.
class ByteTables {
 public:
  ByteTables(const LivenessFacts& facts, int device);
  int64_t operator()(ValueId value, int microbatch) const {
    return tables_[of_[at(microbatch)]][at(value)];
  }

 private:
  std::vector<size_t> of_;  // [microbatch] into tables_
  std::vector<std::vector<int64_t>> tables_;
};

// Live bytes while step `step` of call `call` runs its op number `op` (0 for posts and waits), and
// after it.
struct MemoryPoint {
  size_t call = 0, step = 0, op = 0;
  int64_t during = 0, after = 0;
};

// Follows one device through the calls of its stage, step by step.
class Liveness {
 public:
  // `device`: of the mesh. `points`, if given, gets an entry per op, post and wait. Requires: all
  // outlive this, and the stage has calls.
  Liveness(const LivenessFacts& facts,
           int device,
           MemoryMeter& meter,
           std::vector<MemoryPoint>* points = nullptr);

  // Continues with a program that differs only in sizes.
  void use(const LivenessFacts& facts);
  // Write or free a value between calls. A write reuses the storage of a value of equal size if one
  // exists. Throws as MemoryMeter::refuse().
  void write(ValueId value);
  void free(ValueId value) { storages_.drop(slot(value)); }
  // Adds bytes that are never freed.
  void keep(int64_t bytes, MemoryPart part) { storages_.add({bytes, part, false}); }

  // Follow the calls in order; the first one begins a step. Throw as MemoryMeter::refuse().
  void begin(size_t call);
  void follow(size_t step, const Segment& segment);
  void follow(size_t step, const Post& post);
  void follow(size_t step, const Wait& wait);
  void end();
  bool is_in_call() const { return is_in_call_; }
  // Returns the bytes that the call's micro-batch has saved for its backward call.
  int64_t saved() const;

  // The point with the most live bytes.
  struct Peak {
    int64_t bytes = 0;
    MemoryParts parts{};
    std::string at;  // "backward 1, h.0.mlp: aten.mm.default"
  };
  const Peak& peak() const { return peak_; }

 private:
  struct InFlight {
    std::vector<int> inputs, outputs;
  };
  const LoweredStage& stage() const { return facts_->stage; }
  const Call& call() const { return stage().calls[point_.call]; }
  const FrameUse& frame_use() const { return facts_->schedule.uses[point_.call]; }
  Lifetime lifetime(ValueId value) const { return stage().lifetimes[at(value)]; }
  int64_t bytes(ValueId value) const { return bytes_(value, call().microbatch); }
  int& slot(ValueId value);
  int take(ValueId value, int microbatch, MemoryPart part, bool computed = false);
  void put(ValueId value, int storage);
  template <typename What>
  void note(const What& what);
  void end_point();
  void begin_step();
  int left_storage(const LivenessFacts::OfOp& op, const std::vector<ValueId>& dies, ValueId result);
  void send(const Communication& communication, const Post& post);
  void receive_ahead();
  void drop_all(std::vector<int>& storages);

  const LivenessFacts* facts_;
  const int device_;  // in the mesh
  ByteTables bytes_;
  MemoryMeter& meter_;
  std::vector<MemoryPoint>* points_;
  Storages storages_;
  std::vector<int> run_;                         // [value] kRun and kStep
  std::vector<std::vector<int>> frames_;         // [frame][value]
  std::vector<std::deque<InFlight>> in_flight_;  // [communication], oldest first
  std::map<int, std::deque<int>> sending_;       // by lane, oldest first
  Receiving<int> receiving_;
  std::vector<std::vector<std::pair<ValueId, int>>> batch_;  // [microbatch]
  MemoryPoint point_;
  size_t frame_ = 0;
  bool is_in_call_ = false;
  Peak peak_;
};

}  // namespace medley
