#include "runtime_run.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "medley/base/error.h"
#include "medley/graph/text.h"
#include "medley/plan/plan.h"
#include "medley/program/lower.h"
#include "medley/torch/arguments.h"
#include "medley/torch/tensor_buffer.h"
#include "medley/trace/trace.h"

namespace medley {
namespace {

constexpr const char* kMaster = "master:";

Program make_program(const RunInput& input) {
  const Graph graph = parse_graph(input.graph, "<graph>");
  const Plan plan = parse_plan(input.plan, "<plan>");
  verify(plan, graph, input.cluster);
  LowerOptions options;
  options.keep_gradients = input.keep_gradients;
  return lower(graph, plan, input.cluster, input.optimizer, options);
}

DeviceOptions device_options(const RunInput& input) {
  DeviceOptions options = input.devices;
  options.keep_gradients = input.keep_gradients;
  return options;
}

}  // namespace

Run::Run(const RunInput& input)
    : cluster_(input.cluster),
      seed_(input.seed),
      program_(make_program(input)),
      devices_(std::make_unique<Devices>(program_, cluster_, device_options(input))),
      membership_(join(input)) {
  clear_state();
}

std::unique_ptr<Membership> Run::join(const RunInput& input) {
  if (!input.membership) return nullptr;
  const DevicePlace own = devices_->place(0);
  std::vector<int> all;
  for (const LoweredStage& each : program_.stages)
    all.insert(all.end(), each.devices.begin(), each.devices.end());
  const NamedHashes hashes{{"graphs", program_.graph_hash},
                           {"plans", program_.plan_hash},
                           {"versions", input.versions},
                           {"programs", hash(program_)}};
  return std::make_unique<Membership>(
      *input.membership,
      stage(own.stage).devices[static_cast<size_t>(own.index)],
      all,
      device_names(),
      hashes,
      [devices = devices_.get()](const std::string& cause) { devices->abort(cause); });
}

const Table& Run::table(size_t microbatch, DevicePlace place) const {
  return stage(place.stage).tables[microbatch][static_cast<size_t>(place.index)];
}

std::vector<Run::Found> Run::find(const std::string& kind, const std::string& name) const {
  std::vector<Found> found;
  for (int s = 0; s < static_cast<int>(program_.stages.size()); ++s) {
    const auto& placements = kind == "gradient" ? stage(s).gradients : stage(s).inputs;
    for (const Placement& placement : placements)
      if ((kind == "gradient" || to_string(placement.input.kind) == kind) &&
          placement.input.name == name)
        found.push_back({&placement, s});
  }
  if (found.empty())
    throw Error(Blame::kCaller, fmt::format("the plan's graph has no {} \"{}\"", kind, name));
  return found;
}

std::vector<int> Run::holders(const std::string& kind, const std::string& name) const {
  const int only = find(kind, name)[0].stage;
  std::vector<int> numbers;
  const std::vector<DevicePlace> places = device_places(program_);
  for (size_t i = 0; i < places.size(); ++i)
    if (places[i].stage == only) numbers.push_back(static_cast<int>(i));
  return numbers;
}

std::vector<std::pair<std::string, std::string>> Run::values() const {
  std::vector<std::pair<std::string, std::string>> names;
  const auto add = [&](const std::string& kind, const std::string& name) {
    if (std::find(names.begin(), names.end(), std::pair(kind, name)) == names.end())
      names.emplace_back(kind, name);
  };
  for (const LoweredStage& each : program_.stages)
    for (const Placement& placement : each.inputs)
      if (placement.input.kind != InputKind::kBatch && placement.input.kind != InputKind::kScalar)
        add(to_string(placement.input.kind), placement.input.name);
  for (const LoweredStage& each : program_.stages)
    for (const Placement& placement : each.gradients) add("gradient", placement.input.name);
  return names;
}

void Run::write(const Found& found, const at::Tensor& whole) {
  for (int i = 0; i < devices_->size(); ++i) {
    if (devices_->place(i).stage != found.stage) continue;
    const at::Tensor local =
        shard_of(whole, stage(found.stage), *found.placement, table(0, devices_->place(i)))
            .to(devices_->torch_device(i));
    // Training must not change what we were given.
    devices_->interpreter(i).write(found.placement->input.value,
                                   to_buffer(local.is_alias_of(whole) ? local.clone() : local));
  }
}

// Optimizers start from zeros.
void Run::clear_state() {
  for (int i = 0; i < devices_->size(); ++i)
    for (const Placement& placement : stage_of(i).inputs) {
      if (placement.input.kind != InputKind::kState) continue;
      const TensorType& type = type_of(stage_of(i).graph, placement.input.value);
      devices_->interpreter(i).write(
          placement.input.value,
          to_buffer(at::zeros(shape_of(type, table(0, devices_->place(i))),
                              at::TensorOptions()
                                  .dtype(to_scalar_type(type.dtype))
                                  .device(devices_->torch_device(i)))));
    }
}

void Run::load(const std::string& kind, const std::string& name, const at::Tensor& whole) {
  for (const Found& found : find(kind, name)) {
    const Placement& placement = *found.placement;
    const DType dtype = type_of(stage(found.stage).graph, placement.input.value).dtype;
    const std::vector<int64_t> shape = whole_shape(placement, table(0, {found.stage, 0}));
    if (whole.scalar_type() != to_scalar_type(dtype) || whole.sizes() != at::IntArrayRef(shape))
      throw Error(Blame::kCaller,
                  fmt::format("{} \"{}\": found {}, expected {}",
                              kind,
                              name,
                              describe(whole.scalar_type(), whole.sizes()),
                              describe(to_scalar_type(dtype), shape)));
    write(found, whole.detach());
    if (kind != "parameter") continue;
    for (const Placement& state : stage(found.stage).inputs)
      if (state.input.kind == InputKind::kState && state.input.name == kMaster + name)
        write({&state, found.stage}, whole.detach().to(at::kFloat));
  }
}

at::Tensor Run::shard(const std::string& kind, const std::string& name, int index) {
  for (const Found& found : find(kind, name))
    if (found.stage == devices_->place(index).stage)
      return to_tensor(devices_->interpreter(index).read(found.placement->input.value));
  return {};
}

std::vector<int64_t> Run::shard_shape(const std::string& kind,
                                      const std::string& name,
                                      int device) const {
  const DevicePlace place = device_places(program_).at(static_cast<size_t>(device));
  for (const Found& found : find(kind, name))
    if (found.stage == place.stage)
      return shape_of(type_of(stage(found.stage).graph, found.placement->input.value),
                      table(0, place));
  throw Error(Blame::kUs, fmt::format("device {} has no {} \"{}\"", device, kind, name));
}

at::Tensor Run::assemble(const std::string& kind,
                         const std::string& name,
                         const std::vector<at::Tensor>& shards) const {
  const Found found = find(kind, name)[0];
  std::vector<const Table*> tables;
  for (size_t device = 0; device < shards.size(); ++device)
    tables.push_back(&table(0, {found.stage, static_cast<int>(device)}));
  return medley::assemble(shards, *found.placement, tables);
}

bool Run::is_cut(const std::string& kind, const std::string& name) const {
  return !find(kind, name)[0].placement->cuts.empty();
}

void Run::set_batch(const std::map<std::string, at::Tensor>& batch) {
  for (int i = 0; i < devices_->size(); ++i) set_batch(i, batch);
}

void Run::set_batch(int i, const std::map<std::string, at::Tensor>& batch) {
  const LoweredStage& on = stage_of(i);
  const BatchSlicer slicer(
      program_, on, devices_->place(i).index, devices_->are_of_one_process_each());
  std::vector<BatchInputs> inputs(on.tables.size());
  for (const Placement& placement : on.inputs) {
    if (placement.input.kind != InputKind::kBatch) continue;
    const auto given = batch.find(placement.input.name);
    if (given == batch.end()) {
      std::string found;
      for (const auto& [name, tensor] : batch)
        found += fmt::format("{}\"{}\"", found.empty() ? "" : ", ", name);
      throw Error(
          Blame::kCaller,
          fmt::format(
              "batch: found the keys {}, expected also \"{}\"", found, placement.input.name));
    }
    std::vector<at::Tensor> slices = slicer.slice(placement, given->second);
    for (size_t m = 0; m < slices.size(); ++m)
      inputs[m].emplace_back(placement.input.value,
                             to_buffer(slices[m].to(devices_->torch_device(i))));
  }
  for (size_t m = 0; m < inputs.size(); ++m)
    devices_->interpreter(i).set_batch(static_cast<int>(m), std::move(inputs[m]));
}

void Run::set_scalars(double learning_rate, int64_t step) {
  for (int i = 0; i < devices_->size(); ++i)
    for (const Placement& placement : stage_of(i).inputs) {
      if (placement.input.kind != InputKind::kScalar) continue;
      const at::Tensor value =
          placement.input.name == "rng"
              ? at::tensor({seed_, step}, at::kLong)
              : at::tensor({learning_rate, static_cast<double>(step + 1), 1.0}, at::kDouble);
      devices_->interpreter(i).write(placement.input.value,
                                     to_buffer(value.to(devices_->torch_device(i))));
    }
}

std::string Run::fail(const Place& place, const std::string& cause) {
  return membership_ ? membership_->fail(place.call, place.exchange, cause) : cause;
}

std::string Run::fail(const std::string& cause) { return fail(Place{}, cause); }

void Run::finish() {
  if (membership_) membership_->finish();
}

// All stages have the same, or nothing.
double Run::read_scalar(ValueId LoweredStage::*value) {
  for (int i = 0; i < devices_->size(); ++i) {
    if (stage_of(i).*value == kNone) continue;
    const at::Tensor tensor = to_tensor(devices_->interpreter(i).read(stage_of(i).*value));
    if (tensor.defined()) return tensor.item().toDouble();
  }
  return 0;
}

StepResult Run::step(const std::map<std::string, at::Tensor>& batch,
                     double learning_rate,
                     int64_t step,
                     const std::function<bool()>& poll) {
  set_batch(batch);
  set_scalars(learning_rate, step);
  try {
    reports_ = devices_->run_step([&] {
      if (poll()) devices_->abort("interrupted");
    });
  } catch (const Error& error) {
    throw Error(error.blame(), fail(devices_->interpreter(0).place(), error.what()));
  }
  StepResult result;
  result.loss = read_scalar(&LoweredStage::loss);
  result.gradient_norm = read_scalar(&LoweredStage::gradient_norm);
  for (int i = 0; i < devices_->size(); ++i) {
    const StepReport& report = reports_[static_cast<size_t>(i)];
    result.devices.push_back(devices_->interpreter(i).device_name());
    result.nanoseconds.push_back((report.end - report.start).value);
    result.waiting.push_back(report.waiting.value);
  }
  return result;
}

std::vector<std::string> Run::device_names() const {
  std::vector<std::string> names;
  for (const LoweredStage& each : program_.stages)
    for (int device : each.devices)
      names.push_back(cluster_.devices.at(static_cast<size_t>(device)).name);
  return names;
}

std::vector<MemoryUse> Run::memory() const {
  std::vector<MemoryUse> uses;
  for (const LoweredStage& each : program_.stages)
    for (int device = 0; device < static_cast<int>(each.devices.size()); ++device)
      uses.push_back(memory_use(each, device));
  return uses;
}

std::string Run::trace_json() const {
  Trace trace;
  for (const Device& device : cluster_.devices) trace.devices.push_back(device.name);
  for (const StepReport& report : reports_)
    trace.events.insert(trace.events.end(), report.events.begin(), report.events.end());
  return to_chrome_json(std::move(trace));
}

}  // namespace medley
