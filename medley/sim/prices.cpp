#include "medley/sim/prices.h"

#include <algorithm>
#include <set>

#include "medley/base/error.h"
#include "medley/program/calls.h"

namespace medley {
namespace {

size_t at(int64_t index) { return static_cast<size_t>(index); }

void add_symbols(const TensorType& type, std::set<Symbol>& symbols) {
  for (const Size& size : type.shape) symbols.insert(size.symbols.begin(), size.symbols.end());
}

// Integers among the arguments matter to matrix products, attention and convolutions only: those of
// other ops say where shards start.
void add_symbols(const Graph& graph, const Op& op, std::set<Symbol>& symbols) {
  for (const auto& values : {operands(op), op.results})
    for (ValueId value : values)
      if (value != kNone) add_symbols(type_of(graph, value), symbols);
  const WorkClass kind = work_class(op.name);
  if (kind == WorkClass::kMemory || kind == WorkClass::kView) return;
  for (const Argument& argument : op.arguments) {
    if (const auto* size = std::get_if<Size>(&argument))
      symbols.insert(size->symbols.begin(), size->symbols.end());
    if (const auto* sizes = std::get_if<std::vector<Size>>(&argument))
      for (const Size& each : *sizes) symbols.insert(each.symbols.begin(), each.symbols.end());
  }
}

CollectiveKind collective_kind(CommunicationKind kind) {
  switch (kind) {
    case CommunicationKind::kAllReduce:
      return CollectiveKind::kAllReduce;
    case CommunicationKind::kAllGather:
      return CollectiveKind::kAllGather;
    case CommunicationKind::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case CommunicationKind::kAllToAll:
      break;
  }
  return CollectiveKind::kAllToAll;
}

}  // namespace

SegmentPrices::SegmentPrices(const LoweredStage& stage, const CostModel& costs)
    : stage_(stage), costs_(costs) {}

const std::vector<Symbol>& SegmentPrices::symbols_of(const Segment& segment) {
  const auto [place, is_new] = symbols_.try_emplace(&segment);
  if (!is_new) return place->second;
  std::set<Symbol> symbols;
  for (OpId op : segment.ops) add_symbols(stage_.graph, stage_.graph.ops[at(op)], symbols);
  place->second.assign(symbols.begin(), symbols.end());
  return place->second;
}

const SegmentPrice& SegmentPrices::price(const Segment& segment, int microbatch, int device) {
  const std::vector<int64_t>& table = stage_.tables[at(microbatch)][at(device)];
  const DeviceKind& kind = costs_.cluster().kind(stage_.devices[at(device)]);
  std::vector<int64_t> values;
  for (Symbol symbol : symbols_of(segment)) values.push_back(table[at(symbol)]);
  const auto [place, is_new] = prices_.try_emplace({&segment, kind.name, std::move(values)});
  SegmentPrice& price = place->second;
  if (!is_new) return price;
  price.ops_by_source.resize(3);
  for (OpId id : segment.ops) {
    const Cost cost = costs_.op(kind, stage_.graph, stage_.graph.ops[at(id)], table);
    price.time += cost.value;
    price.ends.push_back(price.time);
    if (cost.value > Nanoseconds{}) ++price.ops_by_source[static_cast<size_t>(cost.source)];
  }
  return price;
}

CommunicationPrices::CommunicationPrices(const LoweredStage& stage, const CostModel& costs)
    : stage_(stage), costs_(costs) {}

Collective CommunicationPrices::collective(const Communication& communication,
                                           int microbatch,
                                           const std::vector<int>& members) const {
  const auto& tables = stage_.tables[at(microbatch)];
  const auto type = [&](ValueId value) -> const TensorType& {
    return stage_.graph.values[at(value)].type;
  };
  Collective result;
  result.kind = collective_kind(communication.kind);
  result.granule = bytes_per_element(type(communication.inputs.back()).dtype);
  for (int member : members) result.devices.push_back(stage_.devices[at(member)]);
  if (result.kind == CollectiveKind::kAllReduce) {
    int64_t bytes = 0;
    for (ValueId value : communication.inputs)
      bytes += num_bytes(type(value), tables[at(members[0])]);
    result.lengths = {bytes / result.granule * result.granule};
    return result;
  }
  const bool gather = result.kind == CollectiveKind::kAllGather;
  const bool all_to_all = result.kind == CollectiveKind::kAllToAll;
  for (size_t from = 0; from < (all_to_all ? members.size() : 1); ++from)
    for (const Size& size : gather ? communication.receive : communication.send)
      result.lengths.push_back(result.granule * evaluate(size, tables[at(members[from])]));
  return result;
}

namespace {

// All-to-all is pairwise: a device knows no lengths but its own, and so cannot choose.
std::vector<Message> choose_messages(const Collective& collective, const Topology& topology) {
  if (collective.devices.size() < 2) return {};
  if (collective.kind != CollectiveKind::kAllToAll) return cheapest(collective, topology).messages;
  for (const Algorithm& algorithm : algorithms())
    if (algorithm.name == "pairwise")
      return messages(algorithm, collective, group_by_node(collective, topology));
  MEDLEY_CHECK(!"pairwise");
  return {};
}

Exchanges make_exchanges(const Collective& collective, const Topology& topology) {
  Exchanges result;
  result.devices = collective.devices;
  result.steps.resize(collective.devices.size());
  std::map<std::pair<int, int>, int64_t> by_pair;
  for (const Message& message : choose_messages(collective, topology)) {
    result.steps[at(message.from)].push_back(
        {message.round, collective.devices[at(message.to)], message.bytes, true});
    result.steps[at(message.to)].push_back(
        {message.round, collective.devices[at(message.from)], message.bytes, false});
    by_pair[{message.from, message.to}] += message.bytes;
    ++result.num_messages;
  }
  std::map<int, int64_t> by_link;
  for (const auto& [pair, bytes] : by_pair)
    for (int link :
         topology.path(collective.devices[at(pair.first)], collective.devices[at(pair.second)])
             .links)
      by_link[link] += bytes;
  result.bytes_by_link.assign(by_link.begin(), by_link.end());
  return result;
}

}  // namespace

const Exchanges& CommunicationPrices::exchanges(int index, int microbatch, int member) {
  const Communication& communication = stage_.communications[at(index)];
  const std::vector<int> members = group_along(stage_.mesh, communication.axis, member);
  const Exchanges*& found = found_[{index, microbatch, members[0]}];
  if (found) return *found;
  const Collective wanted = collective(communication, microbatch, members);
  const auto [place, is_new] = known_.try_emplace({wanted.kind, wanted.devices, wanted.lengths});
  if (is_new) place->second = make_exchanges(wanted, costs_.topology());
  found = &place->second;
  return *found;
}

}  // namespace medley
