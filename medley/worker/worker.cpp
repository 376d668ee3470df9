#include "medley/worker/worker.h"

#include <mutex>
#include <optional>

#include "medley/base/error.h"
#include "medley/trace/trace.h"

namespace medley {

// The waits that the watchdog's thread ends, including those of devices under construction.
struct Worker::Abort {
  std::mutex mutex;
  Devices* devices = nullptr;
  std::optional<std::string> cause;

  void set(const std::string& first_cause) {
    const std::scoped_lock lock(mutex);
    cause = first_cause;
    if (devices) devices->abort(first_cause);
  }
  void attach(Devices& made) {
    const std::scoped_lock lock(mutex);
    devices = &made;
    if (cause) made.abort(*cause);
  }
};

Worker::Worker(const WorkerInput& input, const WorkerParts& parts)
    : cluster_(input.cluster),
      program_(input.program),
      used_(input.program),
      abort_(std::make_shared<Abort>()) {
  verify(*program_);
  membership_ = join(input, parts);
  try {
    devices_ = std::make_unique<Devices>(program_, cluster_, parts.devices, input.devices);
  } catch (const Error& error) {
    throw Error(error.blame(), fail(error.what()));
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
  abort_->attach(*devices_);
}

Worker::~Worker() = default;

std::unique_ptr<Membership> Worker::join(const WorkerInput& input, const WorkerParts& parts) {
  if (!parts.make_store) return nullptr;
  const DevicePlace own = device_places(program()).at(at(input.devices.own.at(0)));
  std::vector<int> all;
  for (const LoweredStage& each : program().stages)
    all.insert(all.end(), each.devices.begin(), each.devices.end());
  const NamedHashes hashes{{"graphs", program().graph_hash},
                           {"plans", program().plan_hash},
                           {"versions", input.versions},
                           {"programs", hash(program())}};
  return std::make_unique<Membership>(
      parts.make_store(),
      input.membership,
      stage(own.stage).devices[at(own.index)],
      all,
      device_names(),
      hashes,
      [abort = abort_](const std::string& cause) { abort->set(cause); });
}

void Worker::use(const std::shared_ptr<const Program>& program, const std::string& label) {
  if (program == used_) return;
  used_ = program;
  label_ = label;
  devices_->use(program);
}

void Worker::run_step(const std::function<bool()>& poll) {
  begin(label_.empty() ? "step()" : "step() " + label_);
  try {
    reports_ = devices_->run_step([&] {
      if (poll()) devices_->abort("interrupted");
    });
  } catch (const Error& error) {
    if (!is_trial_) throw fail(devices_->interpreter(0).place(), error);
    end();
    throw;
  }
  end();
}

void Worker::finish_step(const std::vector<Buffer>& committed) {
  MEDLEY_CHECK_EQ(devices_->size(), 1);
  reports_ = {devices_->interpreter(0).finish_step(committed)};
}

std::string Worker::trace_json() const {
  Trace trace;
  for (const Device& device : cluster_.devices) trace.devices.push_back(device.name);
  for (const StepReport& report : reports_)
    trace.events.insert(trace.events.end(), report.events.begin(), report.events.end());
  return to_chrome_json(std::move(trace));
}

Error Worker::fail(const Place& place, const Error& error) {
  return membership_ ? membership_->fail(place.call, place.exchange, error) : error;
}

std::string Worker::fail(const std::string& cause, bool in_exchange) {
  const Place place{"", in_exchange ? "an exchange of all processes" : ""};
  return fail(place, Error(Blame::kEnvironment, cause)).what();
}

void Worker::begin(const std::string& joint_call) {
  if (membership_) membership_->begin(joint_call);
}

void Worker::end() {
  if (membership_) membership_->end();
}

void Worker::finish() {
  if (membership_) membership_->finish();
}

std::vector<std::string> Worker::device_names() const {
  std::vector<std::string> names;
  for (const LoweredStage& each : program().stages)
    for (int device : each.devices) names.push_back(cluster_.devices.at(at(device)).name);
  return names;
}

std::vector<MemoryUse> Worker::memory() const {
  std::vector<MemoryUse> uses;
  for (const LoweredStage& each : program().stages)
    for (int device = 0; device < static_cast<int>(each.devices.size()); ++device)
      uses.push_back(memory_use(each, device));
  return uses;
}

}  // namespace medley
