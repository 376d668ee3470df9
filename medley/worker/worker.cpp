#include "medley/worker/worker.h"

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/text.h"
#include "medley/plan/plan.h"
#include "medley/program/lower.h"
#include "medley/trace/trace.h"

namespace medley {
namespace {

Program make_program(const WorkerInput& input) {
  const Graph graph = parse_graph(input.graph, "<graph>");
  const Plan plan = parse_plan(input.plan, "<plan>");
  verify(plan, graph, input.cluster);
  LowerOptions options;
  options.keep_gradients = input.devices.keep_gradients;
  return lower(graph, plan, input.cluster, input.optimizer, options);
}

}  // namespace

Worker::Worker(const WorkerInput& input, const WorkerParts& parts)
    : cluster_(input.cluster),
      devices_(
          std::make_unique<Devices>(make_program(input), cluster_, parts.devices, input.devices)),
      membership_(join(input, parts)) {}

std::unique_ptr<Membership> Worker::join(const WorkerInput& input, const WorkerParts& parts) {
  if (!parts.make_store) return nullptr;
  const DevicePlace own = devices_->place(0);
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
      [devices = devices_.get()](const std::string& cause) { devices->abort(cause); });
}

void Worker::run_step(const std::function<bool()>& poll) {
  try {
    reports_ = devices_->run_step([&] {
      if (poll()) devices_->abort("interrupted");
    });
  } catch (const Error& error) {
    throw Error(error.blame(), fail(devices_->interpreter(0).place(), error.what()));
  }
}

std::string Worker::trace_json() const {
  Trace trace;
  for (const Device& device : cluster_.devices) trace.devices.push_back(device.name);
  for (const StepReport& report : reports_)
    trace.events.insert(trace.events.end(), report.events.begin(), report.events.end());
  return to_chrome_json(std::move(trace));
}

std::string Worker::fail(const Place& place, const std::string& cause) {
  return membership_ ? membership_->fail(place.call, place.exchange, cause) : cause;
}

std::string Worker::fail(const std::string& cause) { return fail(Place{}, cause); }

void Worker::finish() {
  if (membership_) membership_->finish();
}

std::vector<std::string> Worker::device_names() const {
  std::vector<std::string> names;
  for (const LoweredStage& each : program().stages)
    for (int device : each.devices)
      names.push_back(cluster_.devices.at(static_cast<size_t>(device)).name);
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
