#pragma once

// A process of a run: a program on the devices of this process, either all of the plan's as threads
// or one of many. Knows nothing of tensors (medley/run/run.h does).

#include <memory>
#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/cluster/cluster.h"
#include "medley/memory/memory.h"
#include "medley/program/program.h"
#include "medley/worker/devices.h"
#include "medley/worker/membership.h"

namespace medley {

struct WorkerInput {
  std::shared_ptr<const Program> program;
  Cluster cluster;  // the program's
  DeviceOptions devices;
  MembershipOptions membership;
  std::string versions;  // must be equal in all processes
};

struct WorkerParts {
  DeviceParts devices;
  // Connects to the other processes; null: there are none.
  std::function<std::unique_ptr<Store>()> make_store = {};
};

class Worker {
 public:
  // Verifies the program, compares it with the other processes, and then creates the devices.
  Worker(const WorkerInput& input, const WorkerParts& parts);
  ~Worker();

  const Program& program() const { return *program_; }
  // Uses a program of another size (Interpreter::use), or the original one, from now on. `label`:
  // of such a step, for comparison with the other processes: "of 3 rows".
  void use(const std::shared_ptr<const Program>& program, const std::string& label);
  const LoweredStage& stage(int i) const { return program().stages[at(i)]; }
  Devices& devices() { return *devices_; }
  const Devices& devices() const { return *devices_; }

  // Runs one step on all devices of this process. Calls `poll` on this thread meanwhile; true ends
  // the step with the error "interrupted". Publishes a failure and throws the run's first cause.
  void run_step(const std::function<bool()>& poll);
  // On trial, a step that fails here is not published as the end of the run: the caller tells the
  // other processes.
  bool is_trial() const { return is_trial_; }
  void set_trial(bool is_trial) { is_trial_ = is_trial; }
  // For a process of one device: finishes a failed step on this device alone
  // (Interpreter::finish_step).
  void finish_step(const std::vector<Buffer>& committed);
  int64_t steps() const { return devices_->steps(); }  // successful ones
  bool is_alone() const { return membership_ == nullptr; }
  // Returns the last step's report of each device of this process.
  const std::vector<StepReport>& reports() const { return reports_; }
  std::string trace_json() const;  // for the last step

  // For a process of many: this device has failed outside of a step, or has no more work. Returns
  // the run's first cause, possibly another device's. `in_exchange`: a failed exchange between
  // processes outside of a step, which also fails after one of them has finished.
  std::string fail(const std::string& cause, bool in_exchange = false);
  void finish();
  // Marks calls outside of steps that all processes must make together.
  void begin(const std::string& joint_call);
  void end();

  std::vector<std::string> device_names() const;  // devices of the plan, stage by stage
  std::vector<MemoryUse> memory() const;          // likewise

 private:
  struct Abort;
  std::unique_ptr<Membership> join(const WorkerInput& input, const WorkerParts& parts);
  Error fail(const Place& place, const Error& error);

  Cluster cluster_;
  std::shared_ptr<const Program> program_, used_;
  std::string label_;
  bool is_trial_ = false;
  std::shared_ptr<Abort> abort_;
  std::unique_ptr<Devices> devices_;
  std::vector<StepReport> reports_;
  std::unique_ptr<Membership> membership_;
};

}  // namespace medley
