#pragma once

// A process of a run: a program on the devices of this process, all of the plan's as threads or one
// of many. Knows nothing of tensors (medley/run/run.h does).

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
  Cluster cluster;  // that it is for
  DeviceOptions devices;
  MembershipOptions membership;
  std::string versions;  // of what has to be the same in all processes
};

struct WorkerParts {
  DeviceParts devices;
  // To the other processes; null: there are none.
  std::function<std::unique_ptr<Store>()> make_store = {};
};

class Worker {
 public:
  // Verifies the program, meets the other processes, and only once all have the same one makes the
  // devices.
  Worker(const WorkerInput& input, const WorkerParts& parts);
  ~Worker();

  const Program& program() const { return *program_; }
  // Of another size than that (Interpreter::use), or that one: what steps run from now on.
  // `label`: of such a step, for the other processes, which all have to be in one: "of 3 rows".
  void use(const std::shared_ptr<const Program>& program, const std::string& label);
  const LoweredStage& stage(int i) const { return program().stages[at(i)]; }
  Devices& devices() { return *devices_; }
  const Devices& devices() const { return *devices_; }

  // Runs one step on all devices of this process. `poll` is called on this thread while it runs;
  // returning true ends it with the error "interrupted". A failure is told to the other processes,
  // and what is thrown is the first cause of the run.
  void run_step(const std::function<bool()>& poll);
  // Of a process of one device: ends a step that has failed, by this device alone
  // (Interpreter::finish_step).
  void finish_step(const std::vector<Buffer>& committed);
  int64_t steps() const { return devices_->steps(); }  // that have succeeded
  bool is_alone() const { return membership_ == nullptr; }
  // Of the last step, one for each device of this process.
  const std::vector<StepReport>& reports() const { return reports_; }
  std::string trace_json() const;  // of the last step

  // For a process of many: this device has failed outside of a step, or has nothing more to do.
  // Returns the first cause of the run, which may be another's. `in_exchange`: it has failed in
  // what processes send each other outside of a step, which also fails once one of them has
  // finished.
  std::string fail(const std::string& cause, bool in_exchange = false);
  void finish();
  // Around what all processes have to call together, beside steps.
  void begin(const std::string& joint_call);
  void end();

  std::vector<std::string> device_names() const;  // of the plan, stage by stage
  std::vector<MemoryUse> memory() const;          // of the same devices

 private:
  struct Abort;
  std::unique_ptr<Membership> join(const WorkerInput& input, const WorkerParts& parts);
  Error fail(const Place& place, const Error& error);

  Cluster cluster_;
  std::shared_ptr<const Program> program_, used_;
  std::string label_;
  std::shared_ptr<Abort> abort_;
  std::unique_ptr<Devices> devices_;
  std::vector<StepReport> reports_;
  std::unique_ptr<Membership> membership_;
};

}  // namespace medley
