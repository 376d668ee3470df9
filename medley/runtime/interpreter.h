#pragma once

// One device's interpreter of a program: runs the calls of a step in order, segments by the
// executor and communications by the transport. Prepares everything possible before the first step.
// One thread at a time. Knows nothing of tensors, of processes and of what other devices do.

#include <deque>
#include <functional>
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

// A device's position or place of failure, for the others.
struct Place {
  std::string call;      // "forward 2", "" before the first
  std::string exchange;  // "all_gather wte.weight", "" inside a segment
};

struct InterpreterOptions {
  std::string device_name;                         // for errors; "device 3" if empty
  bool trace = false;                              // StepReport::events
  bool keep_gradients = false;                     // until the next step, for reading back
  bool keep_undo = false;                          // a step that has failed can be undone
  std::function<void(const Place&)> on_step = {};  // for tests: before each part of a call
};

// The progress of a step's lasting changes (program/commit.h).
enum class Reached : uint8_t {
  kBefore,     // undo() can revert all changes
  kAtCommit,   // likewise, and only the commit is awaited
  kCommitted,  // all devices have all gradients; the update is not done
  kDone,
  kTorn,  // can be neither undone nor finished
};

// Times by the interpreter's clock. In the events, `device` is an index into all devices of the
// cluster.
struct StepReport {
  Nanoseconds start, end;
  Nanoseconds waiting;  // for communications
  std::vector<TraceEvent> events;
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

  // Uses another program from the next step on, which differs from the first in sizes only, or the
  // first one again. Each is prepared once. Requires: values of kRun have the same sizes in both.
  void use(const std::shared_ptr<const Program>& program);

  // Sets the batch inputs of the next step. Requires: every kMicrobatch input of the graph, once.
  void set_batch(int microbatch, BatchInputs inputs);

  // Runs a step. Errors name device, call, op or exchange. After one this interpreter runs no more
  // steps, and only undo() reverts the step's changes.
  StepReport run_step();

  // Returns the progress of the last begun step; kDone before the first.
  Reached reached() const { return reached_; }
  // Returns the last commit's result, of this step or the previous one; empty before the first.
  const std::vector<Buffer>& committed() const { return committed_; }
  // Returns whether this device's work after the commit needs others. Then a step cannot be
  // finished alone, but can be undone while any device may not have finished it.
  bool spreads() const { return spreads_; }
  // Returns whether the device takes part in the commit.
  bool commits() const { return stage().commit != kNone; }
  // Finishes the step on this device alone, after an error at or after the commit, with the
  // commit's result. Requires: no spreads().
  StepReport finish_step(const std::vector<Buffer>& committed);
  // Reverts the last `steps` steps: 1 for one that failed before its commit. Completed steps count
  // too if the device spreads(). Requires: keep_undo.
  void undo(int steps);

  // Returns values that outlive a step: kRun ones, the loss, the norm and, if kept, the gradients.
  // Null if empty.
  Buffer read(ValueId value);
  // Requires: a kRun value.
  void write(ValueId value, Buffer buffer);

  Place place() const;  // in the last begun step
  const std::string& device_name() const { return options_.device_name; }

 private:
  struct PreparedStep;
  struct PreparedFunction;
  struct PreparedCall;
  // A communication between its post and its wait.
  struct Outstanding {
    Nanoseconds since;
    std::unique_ptr<Pending> pending;  // null if no transport was needed
    std::vector<Buffer> outputs;       // in that case
  };

  struct Prepared;
  void check_batch() const;
  void run_calls();
  template <typename Body>
  void run_safely(Body&& body);
  size_t number_of(const PreparedCall& call) const;
  void follow(const PreparedCall& call, Frames frames, int step);
  void run_call(const PreparedCall& call);
  void run_steps(const PreparedCall& call, Frames frames);
  void end_call(const PreparedCall& call, Frames frames);
  void note_commit(const std::vector<Buffer>& outputs);
  StepReport end_step();
  void keep_for_undo();
  void post(const PreparedStep& step, Frames frames);
  void wait(const PreparedStep& step, Frames frames);
  std::vector<Buffer> finish(Outstanding& outstanding, const Exchange& exchange);
  void store(const PreparedStep& step, std::vector<Buffer> outputs, Frames frames);
  // Transfers (program.h, Communication::lane).
  void send(const PreparedStep& step, std::vector<Buffer> inputs);
  void receive_ahead();
  void receive(const PreparedStep& step, Frames frames);
  void assign(const PreparedFunction& function, Frames frames);
  void empty_step_values(bool all);
  void record(
      Stream stream, std::string name, std::string category, Nanoseconds start, Nanoseconds end);
  [[noreturn]] void rethrow(Blame blame, const std::string& what);

  const LoweredStage& stage() const;  // the stage in the current program

  int stage_index_, device_;
  Executor& executor_;
  const bool is_followed_;
  Transport& transport_;
  Clock& clock_;
  InterpreterOptions options_;

  std::unique_ptr<Frame> run_frame_;
  FrameSchedule schedule_;  // equal for all programs: they differ in sizes only
  std::vector<std::unique_ptr<Frame>> frames_;
  std::map<const Program*, std::unique_ptr<Prepared>> programs_;
  Prepared* now_ = nullptr;
  std::vector<std::deque<Outstanding>> outstanding_;  // [communication], the oldest first
  std::map<int, std::deque<std::pair<Outstanding, const PreparedStep*>>> sending_;  // by lane
  Receiving<Outstanding> receiving_;
  std::vector<BatchInputs> batch_;        // [microbatch]
  std::vector<ValueId> kept_, not_kept_;  // kStep values at the end of a step

  StepReport report_;
  const PreparedCall* current_call_ = nullptr;
  const PreparedStep* current_step_ = nullptr;
  size_t step_number_ = 0;  // within the call
  bool failed_ = false;
  bool spreads_ = false;
  Reached reached_ = Reached::kDone;
  std::vector<Buffer> committed_;
  // Values before the last steps, the newest first.
  std::deque<std::vector<std::pair<ValueId, Buffer>>> undo_;
};

}  // namespace medley
