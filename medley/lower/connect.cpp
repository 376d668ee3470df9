#include "medley/lower/connect.h"

#include <algorithm>
#include <set>
#include <span>
#include <tuple>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"
#include "medley/plan/plan.h"
#include "medley/program/symbols.h"

namespace medley {
namespace {

// The cuttable dims of a value, by the outermost factor.
struct OuterFactor {
  int dim, position;
  Size full;
};
std::vector<OuterFactor> outer_factors(const DecidedStage& stage, ValueId value) {
  const Factors& factors = *stage.completed.factors;
  const auto& dims = factors.values[at(value)];
  std::vector<OuterFactor> found;
  for (int dim = 0; dim < static_cast<int>(dims.size()); ++dim)
    if (!dims[at(dim)].empty())
      found.push_back(
          {dim, position_of(factors, value, dim, 0), factors.extent_sizes[at(dims[at(dim)][0])]});
  return found;
}

SymbolTable::RemoteDivision division(const DecidedStage& stage, int part) {
  SymbolTable::RemoteDivision result{
      stage.completed.assignment.parts[at(part)], static_cast<int>(stage.mesh[0]), {}};
  if (stage.mesh.size() > 1) result.inner = static_cast<int>(stage.mesh[1]);
  if (result.part.name != kRows) return result;
  result.rows = stage.microbatches;
  return result;
}

// Returns the cut of axis 0 if that is at the outermost factor of a dim. Otherwise cuts evenly the
// dim that the other end cuts, else the first large enough dim, else the largest one. Axis 1 cuts
// the remainder evenly.
TransferEnd transfer_end(const DecidedStage& stage, ValueId value, int preferred_dim) {
  const std::vector<std::string>& names = stage.completed.assignment.part_names;
  const auto even = static_cast<int>(std::find(names.begin(), names.end(), kEven) - names.begin());
  TransferEnd end;
  end.devices = stage.devices;
  const AxisPlacement& own = stage.completed.assignment.placements[at(value)][0];
  AxisPlacement outer = sharded(0, even);
  const std::vector<int64_t> symbols{stage.microbatches[0].rows};
  int64_t best = -1;
  for (const OuterFactor& factor : outer_factors(stage, value)) {
    if (own.cuts(factor.position)) {
      end.dim = factor.dim;
      outer = own;
      end.full = factor.full;
      break;
    }
    int64_t size = evaluate(factor.full, symbols);
    if (size >= static_cast<int64_t>(stage.devices.size())) size = kMaxLength - factor.dim;
    if (factor.dim == preferred_dim) size = kMaxLength + 1;
    if (size <= best) continue;
    best = size;
    end.dim = factor.dim;
    outer = sharded(factor.position, even);
    end.full = factor.full;
  }
  if (end.dim < 0) {
    outer = sharded(0, even);
    end.full = Size(1);
  }
  end.placement = {outer};
  if (stage.mesh.size() > 1) end.placement.push_back(sharded(outer.position, even));
  end.division = division(stage, outer.part);
  return end;
}

struct Sent {
  int stage;
  ValueId value;
  OpId producer;
};

using Stages = std::span<const DecidedStage>;  // within one pipeline

std::map<std::string, Sent> all_sent(Stages stages) {
  std::map<std::string, Sent> sent;
  for (size_t s = 0; s < stages.size(); ++s) {
    const Graph& graph = stages[s].completed.prepared->graph;
    for (const Output& output : graph.outputs)
      if (output.kind == OutputKind::kSent)
        MEDLEY_CHECK(sent.emplace(output.name,
                                  Sent{static_cast<int>(s),
                                       output.value,
                                       graph.values[at(output.value)].producer})
                         .second);
  }
  return sent;
}

// Returns whether the stage receives a value only as a buffer's value of the next step.
bool is_new_value_only(const DecidedStage& stage, ValueId value) {
  const Graph& graph = stage.completed.prepared->graph;
  return std::ranges::any_of(graph.outputs,
                             [&](const Output& output) {
                               return output.kind == OutputKind::kBuffer && output.value == value;
                             }) &&
         std::ranges::none_of(
             graph.ops, [&](const Op& op) { return std::ranges::count(operands(op), value) > 0; });
}

// Returns whether the stage's first read of a received value is in its backward phase.
bool is_read_late(const DecidedStage& stage, ValueId value) {
  for (const Op& op : stage.completed.prepared->graph.ops) {
    const std::vector<ValueId> read = operands(op);
    if (op.phase == Phase::kForward && std::find(read.begin(), read.end(), value) != read.end())
      return false;
  }
  return true;
}

// A lane is identified by its stages and the phase of sending. New values of buffers, sent once a
// step, have their own, that of the update.
using Lane = std::tuple<int, int, Phase, bool>;
struct Link {
  std::string name;
  Sent sent;
  ValueId received;
};

// Returns the values of each lane, in the order of sending.
std::map<Lane, std::vector<Link>> find_lanes(Stages stages) {
  const std::map<std::string, Sent> sent = all_sent(stages);
  std::map<Lane, std::vector<Link>> lanes;
  for (size_t s = 0; s < stages.size(); ++s)
    for (const Input& input : stages[s].completed.prepared->graph.inputs) {
      if (input.kind != InputKind::kReceived ||
          is_received_gradient(stages[s].completed.prepared->graph, input.value))
        continue;
      const Sent& from = sent.at(input.name);
      const Op& op = stages[at(from.stage)].completed.prepared->graph.ops[at(from.producer)];
      const bool once = is_new_value_only(stages[s], input.value);
      const Phase phase = once ? Phase::kUpdate : op.phase;
      lanes[{from.stage, static_cast<int>(s), phase, once}].push_back(
          {input.name, from, input.value});
    }
  for (auto& [lane, links] : lanes)
    std::stable_sort(links.begin(), links.end(), [](const Link& a, const Link& b) {
      return std::tuple(a.sent.producer, a.sent.value) < std::tuple(b.sent.producer, b.sent.value);
    });
  return lanes;
}

// Returns the exchange type between both stages' devices: f16 if one of them computes in it, since
// rounding before or after is equal. A stage with another compute type has no bf16 values.
DType wire_between(const DecidedStage& from, const DecidedStage& to) {
  const DType sent = wire_type(from.bf16_as), received = wire_type(to.bf16_as);
  if (sent == received) return sent;
  return sent == DType::kF16 || received == DType::kF16 ? DType::kF16 : DType::kF32;
}

// Connects the sums over stages: of the norm, of the loss and of metrics.
void connect_sums(const std::vector<DecidedStage>& stages,
                  int64_t global_batch,
                  std::vector<Connections>& all) {
  std::vector<int> with_gradients, devices;
  std::vector<DType> bf16_as;
  DType loss = DType::kF32;
  std::map<std::string, TensorType> types;
  for (const DecidedStage& stage : stages) {
    const Prepared& prepared = *stage.completed.prepared;
    devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
    if (prepared.gradient_norm != kNone)
      with_gradients.insert(with_gradients.end(), stage.devices.begin(), stage.devices.end());
    for (const Output& output : prepared.graph.outputs) {
      if (output.kind == OutputKind::kLoss) loss = type_of(prepared.graph, output.value).dtype;
      if (output.kind == OutputKind::kMetric)
        types[output.name] = type_of(prepared.graph, output.value);
    }
    bf16_as.insert(bf16_as.end(), stage.bf16_as.begin(), stage.bf16_as.end());
    if (stage.bf16_as.empty()) bf16_as.push_back(DType::kBF16);
  }
  const DType wire = wire_type(bf16_as);
  loss = replace_bf16(loss, wire);
  for (auto& [name, type] : types) type = summed_type(name, type, wire, global_batch);
  for (size_t s = 0; s < stages.size(); ++s) {
    all[s].metrics = types;
    if (stages.size() == 1) return;
    all[s].all_devices = devices;
    all[s].loss = loss;
    all[s].wire = wire;
    if (stages[s].completed.prepared->gradient_norm != kNone) all[s].norm_devices = with_gradients;
  }
}

}  // namespace

TensorType summed_type(const std::string& name,
                       const TensorType& type,
                       DType wire,
                       int64_t global_batch) {
  TensorType summed = replace_bf16(type, wire);
  if (!has_rows(type)) return summed;
  const Size rows = is_carried(name) ? Size(global_batch) : SymbolTable::batch();
  for (Size& size : summed.shape)
    if (!size.is_constant()) size = rows * Size(size.coefficient);
  // Process groups cannot sum bool.
  if (summed.dtype == DType::kBool) summed.dtype = DType::kU8;
  if (summed.dtype == DType::kI16) summed.dtype = DType::kI32;
  return summed;
}

namespace {

// Numbers lanes from `number` on. Returns the number after the last.
int connect_pipeline(Stages stages,
                     const Pipeline& pipeline,
                     int number,
                     std::span<Connections> all) {
  const PipelineOrder orders = order_of(pipeline);
  const std::vector<int> counts = peak_in_flight(orders);
  for (size_t s = 0; s < stages.size(); ++s) all[s].order = orders[s];
  for (const auto& [lane, links] : find_lanes(stages)) {
    const auto& [from, to, phase, once] = lane;
    const DecidedStage& sender = stages[at(from)];
    const DecidedStage& receiver = stages[at(to)];
    bool late = false;
    for (const Link& link : links)
      late = late || (phase == Phase::kForward && is_read_late(receiver, link.received));
    const auto [later, earlier] = std::minmax(counts[at(from)], counts[at(to)]);
    const int slots = message_slots(earlier, later) + (late ? counts[at(to)] : 0);
    for (const Link& link : links) {
      Crossing crossing;
      crossing.name = link.name;
      crossing.from = transfer_end(sender, link.sent.value, -1);
      crossing.to = transfer_end(receiver, link.received, crossing.from.dim);
      // A free choice follows the other end's cut.
      crossing.from = transfer_end(sender, link.sent.value, crossing.to.dim);
      crossing.lane = number;
      crossing.depth = slots * static_cast<int>(links.size());
      crossing.wire = wire_between(sender, receiver);
      crossing.once = once;
      all[at(from)].sends.emplace(link.sent.value, crossing);
      all[at(to)].receives.emplace_back(link.received, crossing);
    }
    ++number;
  }
  return number;
}

// Connects the sums of normalisers. Every pipeline adds once, whichever of its stages read it.
void connect_normalisers(const std::vector<DecidedStage>& stages, std::vector<Connections>& all) {
  std::map<std::string, std::vector<int>> devices;
  std::set<std::pair<int, std::string>> counted;  // by pipeline
  for (const DecidedStage& stage : stages)
    for (const std::string& normaliser : stage.completed.prepared->normalisers)
      devices[normaliser].insert(
          devices[normaliser].end(), stage.devices.begin(), stage.devices.end());
  for (size_t s = 0; s < stages.size(); ++s)
    for (const std::string& normaliser : stages[s].completed.prepared->normalisers)
      all[s].normalisers[normaliser] = {devices.at(normaliser),
                                        counted.emplace(stages[s].pipeline, normaliser).second};
}

}  // namespace

std::vector<Connections> connect(const std::vector<DecidedStage>& stages, const Plan& plan) {
  std::vector<Connections> all(stages.size());
  size_t first = 0;
  int lanes = 0;
  for (const Pipeline& pipeline : plan.pipelines) {
    const size_t count = pipeline.stages.size();
    lanes = connect_pipeline(Stages(stages).subspan(first, count),
                             pipeline,
                             lanes,
                             std::span(all).subspan(first, count));
    first += count;
  }
  connect_sums(stages, plan.global_batch, all);
  if (plan.pipelines.size() > 1) connect_normalisers(stages, all);
  return all;
}

Connections connect_alone(const DecidedStage& stage) {
  constexpr int kNobody = -1;
  constexpr int kMicrobatches = 2;
  const Graph& graph = stage.completed.prepared->graph;
  const auto whole = [](TransferEnd end) {
    end.division = {Part{std::string(kEven), {}, {}}, 1, {}};
    end.devices = {kNobody};
    return end;
  };
  Connections alone;
  alone.wire = wire_type(stage.bf16_as);
  std::map<int, int> sizes;  // lane -> values of a micro-batch
  const auto lane_of = [](bool sends, bool late) { return 2 * (sends ? 1 : 0) + (late ? 1 : 0); };
  constexpr int kNewValues = 4;
  for (const Input& input : graph.inputs) {
    if (input.kind != InputKind::kReceived) continue;
    Crossing crossing;
    crossing.name = input.name;
    crossing.to = transfer_end(stage, input.value, -1);
    crossing.from = whole(crossing.to);
    crossing.wire = wire_type(stage.bf16_as);
    crossing.once = is_new_value_only(stage, input.value);
    crossing.lane = crossing.once ? kNewValues : lane_of(false, is_read_late(stage, input.value));
    ++sizes[crossing.lane];
    alone.receives.emplace_back(input.value, crossing);
  }
  for (const Output& output : graph.outputs) {
    if (output.kind != OutputKind::kSent) continue;
    const OpId producer = graph.values[at(output.value)].producer;
    Crossing crossing;
    crossing.name = output.name;
    crossing.from = transfer_end(stage, output.value, -1);
    crossing.to = whole(crossing.from);
    crossing.wire = wire_type(stage.bf16_as);
    crossing.lane = lane_of(true, graph.ops[at(producer)].phase != Phase::kForward);
    ++sizes[crossing.lane];
    alone.sends.emplace(output.value, crossing);
  }
  for (auto& [value, crossing] : alone.receives)
    crossing.depth = kMicrobatches * sizes.at(crossing.lane);
  for (auto& [value, crossing] : alone.sends)
    crossing.depth = kMicrobatches * sizes.at(crossing.lane);
  alone.order = order_calls({1}, static_cast<int>(stage.microbatches.size()))[0];
  return alone;
}

int64_t bucket_bytes(const LowerOptions& options, const Cluster& cluster, size_t devices) {
  if (options.bucket_bytes != 0) return options.bucket_bytes;
  double bytes = 0;
  for (const Network& network : cluster.networks)
    if (!network.inside_node)
      bytes =
          std::max(bytes, 8 * static_cast<double>(devices) * network.latency * network.bandwidth);
  return std::clamp(static_cast<int64_t>(bytes), int64_t{1} << 20, int64_t{25} << 20);
}

}  // namespace medley
