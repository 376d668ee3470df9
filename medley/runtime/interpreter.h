#pragma once

// One device's interpreter of a program: runs the calls of a step in their order, segments by the
// executor and communications by the transport. All that can be decided before the first step is.
// One thread at a time. Knows nothing of tensors, of processes and of what other devices do.

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "medley/base/clock.h"
#include "medley/base/error.h"
#include "medley/program/calls.h"
#include "medley/program/frame_schedule.h"
#include "medley/program/lanes.h"
#include "medley/runtime/executor.h"
#include "medley/runtime/transport.h"
#include "medley/trace/trace.h"

namespace medley {

struct InterpreterOptions {
  std::string device_name;      // for errors; "device 3" if empty
  bool trace = false;           // StepReport::events
  bool keep_gradients = false;  // until the next step, for reading back
};

// Times by the clock of the interpreter. In the events, `device` is an index into all devices of
// the cluster.
struct StepReport {
  Nanoseconds start, end;
  Nanoseconds waiting;  // for communications
  std::vector<TraceEvent> events;
};

// Where a device is or has failed, for the others.
struct Place {
  std::string call;      // "forward 2", "" before the first
  std::string exchange;  // "all_gather wte.weight", "" inside a segment
};

using BatchInputs = std::vector<std::pair<ValueId, Buffer>>;

class Interpreter {
 public:
  // `device` is an index into the stage's mesh. Requires: all references outlive this.
  Interpreter(const Program& program,
              int stage,
              int device,
              Executor& executor,
              Transport& transport,
              Clock& clock,
              InterpreterOptions options = {});
  ~Interpreter();

  // Gives the batch inputs of the next step. Requires: every kMicrobatch input of the graph, once.
  void set_batch(int microbatch, BatchInputs inputs);

  // Errors name device, call, op or exchange. After one this interpreter is of no more use: what
  // the step has changed is not undone.
  StepReport run_step();

  // Values that outlive a step: kRun ones, the loss, the norm and, if kept, the gradients. Null if
  // empty.
  Buffer read(ValueId value);
  // Requires: a kRun value.
  void write(ValueId value, Buffer buffer);

  Place place() const;  // of the last step that was begun
  const std::string& device_name() const { return options_.device_name; }

 private:
  struct PreparedStep;
  struct PreparedFunction;
  struct PreparedCall;
  // By the values of the symbols that are read.
  template <typename Prepared>
  struct PreparedAlike {
    std::vector<Symbol> symbols;
    std::map<std::vector<int64_t>, std::unique_ptr<Prepared>> by_values;
  };
  // A communication between its post and its wait.
  struct Outstanding {
    bool posted = false;
    Nanoseconds since;
    std::unique_ptr<Pending> pending;  // null if there was nothing to transport
    std::vector<Buffer> outputs;       // then
  };

  // For micro-batches whose tables agree in the symbols that are read, once.
  const PreparedFunction& prepare(FunctionKind kind, const std::vector<int64_t>& table);
  const PreparedStep& prepare(const Step& step, const std::vector<int64_t>& table);
  void check_batch() const;
  void run_call(const PreparedCall& call);
  void post(const PreparedStep& step, Frames frames);
  void wait(const PreparedStep& step, Frames frames);
  std::vector<Buffer> finish(Outstanding& outstanding, const Exchange& exchange);
  void store(const PreparedStep& step, std::vector<Buffer> outputs, Frames frames);
  // Of transfers (program.h, Communication::lane).
  void send(const PreparedStep& step, std::vector<Buffer> inputs);
  void receive_ahead();
  void receive(const PreparedStep& step, Frames frames);
  void assign(const PreparedFunction& function, Frames frames);
  void empty_step_values(bool all);
  void record(
      Stream stream, std::string name, std::string category, Nanoseconds start, Nanoseconds end);
  [[noreturn]] void rethrow(Blame blame, const std::string& what) const;

  const LoweredStage& stage_;
  int stage_index_, device_;
  Executor& executor_;
  Transport& transport_;
  Clock& clock_;
  InterpreterOptions options_;

  std::unique_ptr<Frame> run_frame_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::map<const Step*, PreparedAlike<PreparedStep>> steps_;
  std::map<FunctionKind, PreparedAlike<PreparedFunction>> functions_;
  std::vector<PreparedCall> calls_;
  std::vector<Outstanding> outstanding_;  // [communication]
  std::map<int, std::deque<std::pair<Outstanding, const PreparedStep*>>> sending_;  // by lane
  Receiving<Outstanding> receiving_;
  std::vector<BatchInputs> batch_;        // [microbatch]
  std::vector<ValueId> kept_, not_kept_;  // kStep values at the end of a step

  StepReport report_;
  const PreparedCall* current_call_ = nullptr;
  const PreparedStep* current_step_ = nullptr;
  size_t step_number_ = 0;  // of the call
  bool failed_ = false;
};

}  // namespace medley
