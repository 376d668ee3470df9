#include "medley/run/run.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/executor/aten_executor.h"
#include "medley/kernels/arguments.h"
#include "medley/kernels/spare_copies.h"
#include "medley/kernels/tensor_buffer.h"
#include "medley/prepare/optimizer.h"
#include "medley/prepare/prepare.h"
#include "medley/transport/c10d_store.h"
#include "medley/transport/c10d_transport.h"
#include "medley/transport/host_transport.h"

namespace medley {
namespace {

std::vector<c10::Device> parse_devices(const std::vector<std::string>& names) {
  std::vector<c10::Device> devices;
  for (const std::string& name : names) devices.emplace_back(name);
  if (devices.empty()) devices.emplace_back(c10::kCPU);
  return devices;
}

}  // namespace

Run::Run(const RunInput& input)
    : at_end_(input.at_end),
      seed_(input.seed),
      torch_devices_(parse_devices(input.torch_devices)),
      threads_each_(std::make_shared<std::atomic<int>>(1)),
      sizes_{{input.worker.program, ""}},
      worker_(input.worker, parts(input)) {
  clear_state();
}

Run::~Run() {
  drop_spares();
  if (at_end_) until_ended_ = at_end_();
}

WorkerParts Run::parts(const RunInput& input) {
  WorkerParts parts;
  parts.devices.make_executor =
      [this, &input, places = device_places(*input.worker.program)](int i) {
        const Program& program = *input.worker.program;
        const std::vector<int>& own = input.worker.devices.own;
        const DevicePlace place = places[at(own.empty() ? i : own[at(i)])];
        return make_aten_executor(torch_device(i),
                                  bf16_as(program.stages[at(place.stage)], at(place.index)));
      };
  parts.devices.enter_thread = [threads = threads_each_] {
    if (at::get_num_threads() != *threads) at::set_num_threads(*threads);
  };
  if (!input.worker.devices.own.empty())
    parts.devices.make_transport = [this, &input](Executor&, Clock&) {
      const ProcessGroups groups = input.make_groups();
      NetworkNames names{input.interface, {}, groups.peers};
      for (const Device& device : input.worker.cluster.devices)
        names.devices.emplace(static_cast<int>(names.devices.size()), device.name);
      const bool copies = input.through_host && !torch_device(0).is_cpu();
      auto transport = make_c10d_transport(groups.names,
                                           input.timeout,
                                           copies ? c10::Device(c10::kCPU) : torch_device(0),
                                           names,
                                           groups.connections);
      if (!copies) return transport;
      return make_host_transport(std::move(transport), make_host_copier(torch_device(0)));
    };
  if (input.store)
    parts.make_store = [&input] {
      return make_c10d_store(
          input.store->host, input.store->port, false, input.store->prefix, input.store->timeout);
    };
  return parts;
}

const Table& Run::table(size_t microbatch, DevicePlace place) const {
  return stage(place.stage).tables[microbatch][at(place.index)];
}

std::vector<Run::Found> Run::find(const std::string& kind, const std::string& name) const {
  std::vector<Found> found;
  for (int s = 0; s < static_cast<int>(program().stages.size()); ++s) {
    const auto& placed_values = kind == "gradient" ? stage(s).gradients : stage(s).inputs;
    for (const PlacedValue& placed : placed_values)
      if ((kind == "gradient" || to_string(placed.input.kind) == kind) && placed.input.name == name)
        found.push_back({&placed, s});
  }
  if (found.empty())
    throw Error(Blame::kCaller, fmt::format("the plan's graph has no {} \"{}\"", kind, name));
  return found;
}

std::vector<const Table*> Run::tables(int s) const {
  std::vector<const Table*> all;
  for (const Table& each : stage(s).tables[0]) all.push_back(&each);
  return all;
}

std::vector<Run::Found> Run::find_whole(const std::string& kind, const std::string& name) const {
  std::vector<Found> all = find(kind, name);
  if (is_whole(*all[0].placed, tables(all[0].stage))) all.resize(1);
  return all;
}

std::vector<int> Run::holders(const std::string& kind, const std::string& name) const {
  std::vector<int> numbers;
  const std::vector<DevicePlace> places = device_places(program());
  for (const Found& found : find_whole(kind, name))
    for (size_t i = 0; i < places.size(); ++i)
      if (places[i].stage == found.stage) numbers.push_back(static_cast<int>(i));
  return numbers;
}

std::vector<std::pair<std::string, std::string>> Run::values() const {
  std::vector<std::pair<std::string, std::string>> names;
  const auto add = [&](const std::string& kind, const std::string& name) {
    if (std::find(names.begin(), names.end(), std::pair(kind, name)) == names.end())
      names.emplace_back(kind, name);
  };
  for (const LoweredStage& each : program().stages)
    for (const PlacedValue& placed : each.inputs)
      if (placed.input.kind != InputKind::kBatch && placed.input.kind != InputKind::kScalar)
        add(to_string(placed.input.kind), placed.input.name);
  for (const LoweredStage& each : program().stages)
    for (const PlacedValue& placed : each.gradients) add("gradient", placed.input.name);
  return names;
}

void Run::write(const Found& found, const at::Tensor& whole) {
  for (int i = 0; i < devices().size(); ++i) {
    if (devices().place(i).stage != found.stage) continue;
    const at::Tensor local =
        shard_of(whole, stage(found.stage), *found.placed, table(0, devices().place(i)))
            .to(torch_device(i));
    // Training must not change the caller's tensors.
    devices().interpreter(i).write(found.placed->input.value,
                                   to_buffer(local.is_alias_of(whole) ? local.clone() : local));
  }
}

// Optimizers start from zeros.
void Run::clear_state() {
  for (int i = 0; i < devices().size(); ++i)
    for (const PlacedValue& placed : stage_of(i).inputs) {
      if (placed.input.kind != InputKind::kState) continue;
      const TensorType& type = type_of(stage_of(i).graph, placed.input.value);
      devices().interpreter(i).write(
          placed.input.value,
          to_buffer(at::zeros(
              shape_of(type, table(0, devices().place(i))),
              at::TensorOptions().dtype(to_scalar_type(type.dtype)).device(torch_device(i)))));
    }
}

void Run::load(const std::string& kind, const std::string& name, const at::Tensor& whole) {
  for (const Found& found : find(kind, name)) {
    const PlacedValue& placed = *found.placed;
    const DType dtype = type_of(stage(found.stage).graph, placed.input.value).dtype;
    const std::vector<int64_t> shape = whole_shape(placed, table(0, {found.stage, 0}));
    if (whole.scalar_type() != to_scalar_type(dtype) || whole.sizes() != at::IntArrayRef(shape))
      throw Error(Blame::kCaller,
                  fmt::format("{} \"{}\": found {}, expected {}",
                              kind,
                              name,
                              describe(whole.scalar_type(), whole.sizes()),
                              describe(to_scalar_type(dtype), shape)));
    write(found, whole.detach());
    if (kind != "parameter") continue;
    for (const PlacedValue& state : stage(found.stage).inputs)
      if (const auto& [role, of] = state.input.role;
          of == name && (role == StateRole::Kind::kMaster || role == StateRole::Kind::kAverage))
        write({&state, found.stage},
              whole.detach().to(
                  to_scalar_type(type_of(stage(found.stage).graph, state.input.value).dtype)));
  }
}

at::Tensor Run::shard(const std::string& kind, const std::string& name, int index) {
  for (const Found& found : find(kind, name))
    if (found.stage == devices().place(index).stage) {
      const ValueId value = found.placed->input.value;
      const at::Tensor tensor = to_tensor(devices().interpreter(index).read(value));
      const DType dtype = type_of(stage(found.stage).graph, value).dtype;
      // Gradients on a device with another compute type than the graph's.
      return tensor.defined() ? tensor.to(to_scalar_type(dtype)) : tensor;
    }
  return {};
}

at::Tensor Run::empty_shard(const std::string& kind, const std::string& name, int index) const {
  for (const Found& found : find(kind, name))
    if (found.stage == devices().place(index).stage) {
      const TensorType& type = type_of(stage(found.stage).graph, found.placed->input.value);
      return at::empty(
          shape_of(type, table(0, devices().place(index))),
          at::TensorOptions().dtype(to_scalar_type(type.dtype)).device(torch_device(index)));
    }
  return {};
}

void Run::give_shard(const std::string& kind,
                     const std::string& name,
                     int index,
                     const at::Tensor& shard) {
  for (const Found& found : find(kind, name))
    if (found.stage == devices().place(index).stage)
      devices().interpreter(index).write(found.placed->input.value, to_buffer(shard));
}

int Run::cluster_device(int index) const {
  return stage_of(index).devices[at(devices().place(index).index)];
}

void Run::drop(const std::string& kind, const std::string& name) {
  for (const Found& found : find(kind, name))
    for (int i = 0; i < devices().size(); ++i)
      if (found.stage == devices().place(i).stage)
        devices().interpreter(i).write(found.placed->input.value, nullptr);
}

std::vector<int64_t> Run::shard_shape(const std::string& kind,
                                      const std::string& name,
                                      int device) const {
  const DevicePlace place = device_places(program()).at(at(device));
  for (const Found& found : find(kind, name))
    if (found.stage == place.stage)
      return shape_of(type_of(stage(found.stage).graph, found.placed->input.value),
                      table(0, place));
  throw Error(Blame::kUs, fmt::format("device {} has no {} \"{}\"", device, kind, name));
}

at::Tensor Run::assemble(const std::string& kind,
                         const std::string& name,
                         const std::vector<at::Tensor>& shards) const {
  std::vector<ShardPlace> places;
  for (const Found& found : find_whole(kind, name))
    for (const Table* table : tables(found.stage)) places.push_back({found.placed, table});
  return medley::assemble(shards, places);
}

std::vector<std::string> Run::disagreements() {
  std::vector<std::string> names;
  std::map<int, std::vector<int>> own;  // [stage] devices of this process
  for (int i = 0; i < devices().size(); ++i) own[devices().place(i).stage].push_back(i);
  for (const auto& [kind, name] : values()) {
    if (kind == "gradient" || kind == "buffer") continue;
    at::Tensor first;
    bool agree = true;
    for (const Found& found : find(kind, name)) {
      const std::vector<int>& here = own[found.stage];
      if (here.size() != stage(found.stage).devices.size()) continue;
      std::vector<at::Tensor> shards;
      std::vector<ShardPlace> places;
      for (int i : here) {
        shards.push_back(to_tensor(devices().interpreter(i).read(found.placed->input.value)).cpu());
        places.push_back({found.placed, &table(0, devices().place(i))});
      }
      const at::Tensor whole = medley::assemble(shards, places);
      for (size_t d = 0; d < shards.size(); ++d)
        agree =
            agree &&
            shard_of(whole, stage(found.stage), *found.placed, *places[d].table).equal(shards[d]);
      // Shares of an update are disjoint.
      if (!is_whole(*found.placed, tables(found.stage))) continue;
      agree = agree && (!first.defined() || whole.equal(first));
      first = whole;
    }
    if (!agree) names.push_back(name);
  }
  return names;
}

bool Run::is_cut(const std::string& kind, const std::string& name) const {
  return !find(kind, name)[0].placed->cuts.empty();
}

int Run::add_size(const Program& program, const std::string& label) {
  sizes_.push_back({std::make_shared<const Program>(program), label});
  return static_cast<int>(sizes_.size()) - 1;
}

void Run::set_batch(int i, const Program& program, const std::map<std::string, at::Tensor>& batch) {
  const LoweredStage& on = program.stages[at(devices().place(i).stage)];
  const BatchSlicer slicer(on, devices().place(i).index, devices().are_of_one_process_each());
  std::vector<BatchInputs> inputs(on.tables.size());
  for (const PlacedValue& placed : on.inputs) {
    if (placed.input.kind != InputKind::kBatch) continue;
    const auto given = batch.find(placed.input.name);
    if (given == batch.end()) {
      std::string found;
      for (const auto& [name, tensor] : batch)
        found += fmt::format("{}\"{}\"", found.empty() ? "" : ", ", name);
      throw Error(
          Blame::kCaller,
          fmt::format("batch: found the keys {}, expected also \"{}\"", found, placed.input.name));
    }
    std::vector<at::Tensor> slices = slicer.slice(placed, given->second);
    for (size_t m = 0; m < slices.size(); ++m)
      inputs[m].emplace_back(placed.input.value, to_buffer(slices[m].to(torch_device(i))));
  }
  for (size_t m = 0; m < inputs.size(); ++m)
    devices().interpreter(i).set_batch(static_cast<int>(m), std::move(inputs[m]));
}

void Run::set_scalars(const std::vector<std::vector<double>>& scalars, int64_t step) {
  const auto of_rule = [&](const std::string& name) {
    std::vector<double> values = scalars.at(at(rule_of_scalars(name)));
    values.insert(values.begin() + 1, static_cast<double>(step + 1));
    return at::tensor(values, at::kDouble);
  };
  for (int i = 0; i < devices().size(); ++i)
    for (const PlacedValue& placed : stage_of(i).inputs) {
      if (placed.input.kind != InputKind::kScalar) continue;
      const at::Tensor value = placed.input.name == "rng" ? at::tensor({seed_, step}, at::kLong)
                                                          : of_rule(placed.input.name);
      devices().interpreter(i).write(placed.input.value, to_buffer(value.to(torch_device(i))));
    }
}

// Reads a reported value, which all stages have, or none.
at::Tensor Run::read_reported(const std::function<ValueId(const LoweredStage&)>& value) {
  for (int i = 0; i < devices().size(); ++i) {
    const ValueId found = value(stage_of(i));
    if (found == kNone) continue;
    const at::Tensor tensor = to_tensor(devices().interpreter(i).read(found));
    if (tensor.defined()) return tensor;
  }
  return {};
}

double Run::read_scalar(const std::function<ValueId(const LoweredStage&)>& value) {
  const at::Tensor tensor = read_reported(value);
  return tensor.defined() ? tensor.item().toDouble() : 0;
}

StepResult Run::step(const std::map<std::string, at::Tensor>& batch,
                     const std::vector<std::vector<double>>& scalars,
                     int64_t step,
                     int size,
                     const std::function<bool()>& poll) {
  const auto& [program, label] = sizes_.at(at(size));
  for (int i = 0; i < devices().size(); ++i) set_batch(i, *program, batch);
  worker_.use(program, label);
  set_scalars(scalars, step);
  *threads_each_ = std::max(1, at::get_num_threads() / devices().size());
  worker_.run_step(poll);
  return result();
}

StepResult Run::result() {
  StepResult result;
  result.loss = read_scalar(std::mem_fn(&LoweredStage::loss));
  result.gradient_norm = read_scalar(std::mem_fn(&LoweredStage::gradient_norm));
  for (const auto& [name, value] : stage_of(0).metrics) {  // all stages have all metrics
    if (is_carried(name)) continue;
    const at::Tensor whole =
        read_reported([&](const LoweredStage& on) { return on.metrics.at(name); });
    result.metrics[name] = whole.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  }
  for (int i = 0; i < devices().size(); ++i) {
    const StepReport& report = worker_.reports()[at(i)];
    result.devices.push_back(devices().interpreter(i).device_name());
    result.nanoseconds.push_back((report.end - report.start).value);
    result.waiting.push_back(report.waiting.value);
  }
  return result;
}

void Run::share_values(Run& other) {
  MEDLEY_CHECK_EQ(devices().size(), other.devices().size());
  for (int i = 0; i < devices().size(); ++i)
    for (const PlacedValue& placed : stage_of(i).inputs) {
      const Input& input = placed.input;
      if (input.kind != InputKind::kParameter && input.kind != InputKind::kBuffer) continue;
      if (is_carried(input.name)) continue;  // evaluation has its own rows
      const LoweredStage& from = other.stage_of(i);
      const auto found = std::ranges::find_if(from.inputs, [&](const PlacedValue& each) {
        return each.input.kind == input.kind && each.input.name == input.name;
      });
      if (found == from.inputs.end()) continue;
      if (found->placement != placed.placement || found->cuts.size() != placed.cuts.size())
        throw Error(
            Blame::kUs,
            fmt::format(
                "{} \"{}\" lies elsewhere than in training", to_string(input.kind), input.name));
      const Buffer value = other.devices().interpreter(i).read(found->input.value);
      const std::vector<int64_t> shape =
          shape_of(type_of(stage_of(i).graph, input.value), table(0, devices().place(i)));
      MEDLEY_CHECK(to_tensor(value).sizes() == at::IntArrayRef(shape));
      devices().interpreter(i).write(input.value, value);
    }
}

void Run::drop_values() {
  for (int i = 0; i < devices().size(); ++i)
    for (const PlacedValue& placed : stage_of(i).inputs)
      if (placed.input.kind == InputKind::kParameter)
        devices().interpreter(i).write(placed.input.value, nullptr);
}

Run::Left Run::left() {
  const Interpreter& own = devices().interpreter(0);
  Left left{own.reached(), std::nullopt, own.commits(), own.spreads()};
  if (!own.committed().empty()) left.committed = to_tensor(own.committed().at(0)).item().toDouble();
  return left;
}

StepResult Run::finish_step(double committed) {
  const at::NoGradGuard no_grad;
  worker_.finish_step({to_buffer(
      at::full({}, committed, at::TensorOptions().dtype(at::kDouble).device(torch_device(0))))});
  return result();
}

}  // namespace medley
