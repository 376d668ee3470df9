#include "runtime_run.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

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
      stage_(&program_.stages.at(0)),
      devices_(std::make_unique<Devices>(program_, cluster_, device_options(input))),
      membership_(join(input)) {
  clear_state();
}

std::unique_ptr<Membership> Run::join(const RunInput& input) {
  if (!input.membership) return nullptr;
  const int device = stage_->devices.at(static_cast<size_t>(devices_->mesh_index(0)));
  const NamedHashes hashes{{"graphs", program_.graph_hash},
                           {"plans", program_.plan_hash},
                           {"versions", input.versions},
                           {"programs", hash(program_)}};
  return std::make_unique<Membership>(
      *input.membership,
      device,
      stage_->devices,
      device_names(),
      hashes,
      [devices = devices_.get()](const std::string& cause) { devices->abort(cause); });
}

const Table& Run::table(size_t microbatch, int device) const {
  return stage_->tables[microbatch][static_cast<size_t>(device)];
}

Run::Found Run::find(const std::string& kind, const std::string& name) const {
  if (kind == "gradient") {
    for (const Placement& placement : stage_->gradients)
      if (placement.input.name == name) return {&placement, true};
  } else {
    for (const Placement& placement : stage_->inputs)
      if (to_string(placement.input.kind) == kind && placement.input.name == name)
        return {&placement, false};
  }
  throw Error(Blame::kCaller, fmt::format("the plan's graph has no {} \"{}\"", kind, name));
}

std::vector<std::pair<std::string, std::string>> Run::values() const {
  std::vector<std::pair<std::string, std::string>> names;
  for (const Placement& placement : stage_->inputs)
    if (placement.input.kind != InputKind::kBatch && placement.input.kind != InputKind::kScalar)
      names.emplace_back(to_string(placement.input.kind), placement.input.name);
  for (const Placement& placement : stage_->gradients)
    names.emplace_back("gradient", placement.input.name);
  return names;
}

void Run::write(const Placement& placement, const at::Tensor& whole) {
  for (int i = 0; i < devices_->size(); ++i) {
    const at::Tensor local = shard_of(whole, *stage_, placement, table(0, devices_->mesh_index(i)))
                                 .to(devices_->torch_device(i));
    // Training must not change what we were given.
    devices_->interpreter(i).write(placement.input.value,
                                   to_buffer(local.is_alias_of(whole) ? local.clone() : local));
  }
}

// Optimizers start from zeros.
void Run::clear_state() {
  for (const Placement& placement : stage_->inputs) {
    if (placement.input.kind != InputKind::kState) continue;
    const TensorType& type = stage_->graph.values[static_cast<size_t>(placement.input.value)].type;
    for (int i = 0; i < devices_->size(); ++i)
      devices_->interpreter(i).write(
          placement.input.value,
          to_buffer(at::zeros(shape_of(type, table(0, devices_->mesh_index(i))),
                              at::TensorOptions()
                                  .dtype(to_scalar_type(type.dtype))
                                  .device(devices_->torch_device(i)))));
  }
}

void Run::load(const std::string& kind, const std::string& name, const at::Tensor& whole) {
  const Placement& placement = *find(kind, name).placement;
  const DType dtype = stage_->graph.values[static_cast<size_t>(placement.input.value)].type.dtype;
  const std::vector<int64_t> shape = whole_shape(placement, table(0, 0));
  if (whole.scalar_type() != to_scalar_type(dtype) || whole.sizes() != at::IntArrayRef(shape))
    throw Error(Blame::kCaller,
                fmt::format("{} \"{}\": found {}, expected {}",
                            kind,
                            name,
                            describe(whole.scalar_type(), whole.sizes()),
                            describe(to_scalar_type(dtype), shape)));
  write(placement, whole.detach());
  if (kind != "parameter") return;
  for (const Placement& state : stage_->inputs)
    if (state.input.kind == InputKind::kState && state.input.name == kMaster + name)
      write(state, whole.detach().to(at::kFloat));
}

at::Tensor Run::shard(const std::string& kind, const std::string& name, int index) {
  return to_tensor(devices_->interpreter(index).read(find(kind, name).placement->input.value));
}

std::vector<int64_t> Run::shard_shape(const std::string& kind,
                                      const std::string& name,
                                      int device) const {
  const ValueId value = find(kind, name).placement->input.value;
  return shape_of(stage_->graph.values[static_cast<size_t>(value)].type, table(0, device));
}

at::Tensor Run::assemble(const std::string& kind,
                         const std::string& name,
                         const std::vector<at::Tensor>& shards) const {
  const Placement& placement = *find(kind, name).placement;
  std::vector<const Table*> tables;
  for (size_t device = 0; device < shards.size(); ++device)
    tables.push_back(&table(0, static_cast<int>(device)));
  return medley::assemble(shards, placement, tables);
}

bool Run::is_cut(const std::string& kind, const std::string& name) const {
  const Placement& placement = *find(kind, name).placement;
  return placement.state.at(0).holding == Holding::kSharded;
}

void Run::set_batch(const std::map<std::string, at::Tensor>& batch) {
  for (int i = 0; i < devices_->size(); ++i) {
    const BatchSlicer slicer(
        program_, *stage_, devices_->mesh_index(i), devices_->are_of_one_process_each());
    std::vector<BatchInputs> inputs(stage_->tables.size());
    for (const Placement& placement : stage_->inputs) {
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
}

void Run::set_scalars(double learning_rate, int64_t step) {
  for (const Placement& placement : stage_->inputs) {
    if (placement.input.kind != InputKind::kScalar) continue;
    const at::Tensor value =
        placement.input.name == "rng"
            ? at::tensor({seed_, step}, at::kLong)
            : at::tensor({learning_rate, static_cast<double>(step + 1), 1.0}, at::kDouble);
    for (int i = 0; i < devices_->size(); ++i)
      devices_->interpreter(i).write(placement.input.value,
                                     to_buffer(value.clone().to(devices_->torch_device(i))));
  }
}

std::string Run::fail(const Place& place, const std::string& cause) {
  return membership_ ? membership_->fail(place.call, place.exchange, cause) : cause;
}

std::string Run::fail(const std::string& cause) { return fail(Place{}, cause); }

void Run::finish() {
  if (membership_) membership_->finish();
}

double Run::read_scalar(ValueId value) {
  if (value == kNone) return 0;
  const at::Tensor tensor = to_tensor(devices_->interpreter(0).read(value));
  return tensor.defined() ? tensor.item().toDouble() : 0;
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
  result.loss = read_scalar(stage_->loss);
  result.gradient_norm = read_scalar(stage_->gradient_norm);
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
  for (int device : stage_->devices)
    names.push_back(cluster_.devices.at(static_cast<size_t>(device)).name);
  return names;
}

std::vector<MemoryUse> Run::memory() const {
  std::vector<MemoryUse> uses;
  for (size_t device = 0; device < stage_->devices.size(); ++device)
    uses.push_back(memory_use(*stage_, static_cast<int>(device)));
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
