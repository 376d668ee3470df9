#include "medley/sim/prices.h"

#include <algorithm>
#include <numeric>

#include "medley/network/estimate.h"
#include "medley/program/symbols_read.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

void add_symbols(const TensorType& type, std::set<Symbol>& symbols) {
  for (const Size& size : type.shape) symbols.insert(size.symbols.begin(), size.symbols.end());
}

}  // namespace

// Integer arguments matter only to matmuls, attention and convolutions; in other ops they are
// offsets of shards.
void add_symbols_of_work(const Graph& graph, const Op& op, std::set<Symbol>& symbols) {
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

SegmentPrices::SegmentPrices(const LoweredStage& stage, const CostModel& costs)
    : stage_(stage), costs_(costs) {}

SegmentPrices::Known& SegmentPrices::known(const Segment& segment) {
  const auto [place, is_new] = known_.try_emplace(&segment);
  Known& known = place->second;
  if (!is_new) return known;
  std::set<Symbol> symbols;
  for (OpId op : segment.ops) add_symbols_of_work(stage_.graph, stage_.graph.ops[at(op)], symbols);
  known.symbols.assign(symbols.begin(), symbols.end());
  known.last.resize(stage_.devices.size());
  return known;
}

const SegmentPrice& SegmentPrices::price(const Segment& segment, int microbatch, int device) {
  const std::vector<int64_t>& table = stage_.tables[at(microbatch)][at(device)];
  Known& known = this->known(segment);
  const auto value = [&](Symbol symbol) { return table[at(symbol)]; };
  Known::Last& last = known.last[at(device)];
  if (last.price && std::ranges::equal(known.symbols, *last.values, {}, value)) return *last.price;
  std::vector<int64_t> values;
  for (Symbol symbol : known.symbols) values.push_back(value(symbol));
  const DeviceKind& of_cluster = costs_.cluster().kind(stage_.devices[at(device)]);
  const auto [place, is_new] = known.prices.try_emplace({of_cluster.name, std::move(values)});
  SegmentPrice& price = place->second;
  last = {&place->first.second, &price};
  if (!is_new) return price;
  price.ops_by_source.resize(3);
  DeviceKind kind = of_cluster;
  kind.bf16_as = bf16_as(stage_, at(device));
  for (OpId id : segment.ops) {
    const Cost cost = costs_.op(kind, stage_.graph, stage_.graph.ops[at(id)], table);
    price.time += cost.value;
    price.ends.push_back(price.time);
    if (cost.value > Nanoseconds{}) ++price.ops_by_source[at(cost.source)];
  }
  return price;
}

int position_of(const std::vector<int>& devices, int device) {
  return static_cast<int>(std::find(devices.begin(), devices.end(), device) - devices.begin());
}

Nanoseconds occupancy(const Link& link, int64_t bytes) {
  return to_nanoseconds({static_cast<double>(bytes) / link.bandwidth.value});
}

CommunicationPrices::CommunicationPrices(const LoweredStage& stage,
                                         const CostModel& costs,
                                         bool with_messages)
    : stage_(stage),
      costs_(costs),
      with_messages_(with_messages),
      first_identical_(medley::first_identical(stage)) {}

int CommunicationPrices::member(int index, int device) const {
  if (const std::vector<int>& all = stage_.communications[at(index)].devices; !all.empty())
    return position_of(all, stage_.devices[at(device)]);
  return along(stage_.mesh, stage_.communications[at(index)].axis).place(device);
}

Collective CommunicationPrices::collective(const Communication& communication,
                                           int microbatch,
                                           const std::vector<int>& members) const {
  const auto& tables = stage_.tables[at(microbatch)];
  const auto type = [&](ValueId value) -> const TensorType& {
    return stage_.graph.values[at(value)].type;
  };
  const bool transfers = communication.kind == CommunicationKind::kTransfer;
  Collective result;
  result.kind = transfers ? CommunicationKind::kAllToAll : communication.kind;
  result.granule = bytes_per_element(type(any_value(communication)).dtype);
  result.devices = communication.devices;
  if (result.devices.empty())
    for (int member : members) result.devices.push_back(stage_.devices[at(member)]);
  const CommunicationTraits& traits = traits_of(result.kind);
  if (traits.is_whole()) {
    int64_t bytes = 0;
    for (ValueId value : communication.inputs)
      bytes += num_bytes(type(value), tables[at(members[0])]);
    result.lengths = {bytes / result.granule * result.granule};
  } else if (result.kind == CommunicationKind::kGradientSync) {
    const SyncTraffic traffic = traffic_of(*communication.sync);
    for (const auto* round : {&traffic.first, &traffic.second})
      for (int64_t elements : *round) result.lengths.push_back(result.granule * elements);
  } else if (traits.is_pairwise()) {
    result.lengths = lengths_of_messages(communication, microbatch, members, result.granule);
  } else {
    for (const Size& size : traits.receives ? communication.receive : communication.send)
      result.lengths.push_back(result.granule * evaluate(size, tables[at(members[0])]));
  }
  return result;
}

// Each device has the lengths that it sends, and those that it receives from other stages.
std::vector<int64_t> CommunicationPrices::lengths_of_messages(const Communication& communication,
                                                              int microbatch,
                                                              const std::vector<int>& members,
                                                              int64_t granule) const {
  const size_t n = communication.devices.empty() ? members.size() : communication.devices.size();
  const bool receives = only_receives(communication);
  const std::vector<Size>& sizes = receives ? communication.receive : communication.send;
  std::vector<int64_t> lengths(n * n);  // [from * n + to]
  for (size_t m = 0; m < members.size(); ++m) {
    size_t me = m;
    if (!communication.devices.empty())
      me = at(position_of(communication.devices, stage_.devices[at(members[m])]));
    const std::vector<int64_t>& table = stage_.tables[at(microbatch)][at(members[m])];
    for (size_t other = 0; other < n; ++other)
      lengths[receives ? other * n + me : me * n + other] = granule * evaluate(sizes[other], table);
  }
  return lengths;
}

namespace {

int64_t most_messages(CommunicationKind kind, int64_t members) {
  // A reduce-scatter and an all-gather, or broadcasts in at most twice as many slices as devices.
  const int64_t times = kind == CommunicationKind::kAllToAll ? 1 : 2;
  return times * members * (members - 1);
}

}  // namespace

Exchanges CommunicationPrices::exchanges(const Collective& collective) const {
  Exchanges result;
  result.devices = collective.devices;
  result.steps.resize(with_messages_ ? collective.devices.size() : 0);
  if (collective.devices.size() < 2) return result;
  const Topology& topology = costs_.topology();
  const CheapestEstimate chosen = cheapest_estimate(collective, topology);
  result.estimate = chosen.time;
  const std::vector<int64_t> bytes = traffic(*chosen.algorithm, collective, topology);
  for (size_t link = 0; link < bytes.size(); ++link)
    if (bytes[link] > 0) result.bytes_by_link.emplace_back(static_cast<int>(link), bytes[link]);
  if (!with_messages_) return result;
  const std::vector<Message> all =
      messages(*chosen.algorithm, collective, group_by_node(collective, topology));
  result.steps = steps_of_members(all, collective.devices);
  result.num_messages = static_cast<int64_t>(all.size());
  return result;
}

const Exchanges& CommunicationPrices::exchanges(int index, int microbatch, int device) {
  const Communication& communication = stage_.communications[at(index)];
  const bool between_stages = !communication.devices.empty();
  const int first = between_stages ? 0 : along(stage_.mesh, communication.axis).first(device);
  const Exchanges*& found = found_[{index, first_identical(microbatch), first}];
  if (found) return *found;
  std::vector<int> members;
  if (between_stages) {
    members.resize(stage_.devices.size());
    std::iota(members.begin(), members.end(), 0);
  } else {
    members = group_along(stage_.mesh, communication.axis, device);
  }
  const Collective wanted = collective(communication, microbatch, members);
  int senders = 0;
  if (communication.kind == CommunicationKind::kTransfer)
    senders = static_cast<int>(only_sends(communication) ? members.size()
                                                         : wanted.devices.size() - members.size());
  const auto [place, is_new] =
      known_.try_emplace({wanted.kind, senders, wanted.devices, wanted.lengths});
  if (is_new) place->second = exchanges(wanted);
  place->second.num_senders = senders;
  found = &place->second;
  return *found;
}

Nanoseconds CommunicationPrices::with_others(int index, int microbatch, int device) {
  const Exchanges& own = exchanges(index, microbatch, device);
  const AlongAxis axis = along(stage_.mesh, stage_.communications[at(index)].axis);
  const int devices = static_cast<int>(stage_.devices.size());
  if (axis.count == devices) return own.estimate;
  std::map<int, int64_t> loads;
  for (int other = 0; other < devices; ++other)
    if (axis.first(other) == other)
      for (const auto& [link, bytes] : exchanges(index, microbatch, other).bytes_by_link)
        loads[link] += bytes;
  Nanoseconds alone, together;
  for (const auto& [link, bytes] : own.bytes_by_link) {
    const Link& over = costs_.topology().links()[at(link)];
    alone = std::max(alone, occupancy(over, bytes));
    together = std::max(together, occupancy(over, loads.at(link)));
  }
  return own.estimate + together - alone;
}

bool CommunicationPrices::are_identical(int index, const std::vector<int>& devices) {
  const Communication& communication = stage_.communications[at(index)];
  if (!communication.devices.empty()) return true;
  const AlongAxis axis = along(stage_.mesh, communication.axis);
  std::map<int, int> groups;  // first member -> number of its group's devices
  for (const int device : devices) ++groups[axis.first(device)];
  if (groups.size() == 1) return true;
  for (const auto& [first, members] : groups) {
    if (members < axis.count) return false;
    for (int m = 0; m < static_cast<int>(first_identical_.size()); ++m)
      if (first_identical(m) == m &&
          exchanges(index, m, first).estimate != exchanges(index, m, devices[0]).estimate)
        return false;
  }
  return true;
}

NetworkSize network_size(const Program& program) {
  NetworkSize size;
  const auto add = [&](const LoweredStage& stage, const Communication& communication) {
    const auto here = static_cast<int64_t>(stage.devices.size());
    size.posts += here;
    if (communication.devices.empty()) {
      const int64_t members = along(stage.mesh, communication.axis).count;
      size.messages += here / members * most_messages(communication.kind, members);
      return;
    }
    // Counted in one stage only.
    if (communication.devices[0] != stage.devices[0]) return;
    const auto members = static_cast<int64_t>(communication.devices.size());
    const int64_t messages = only_sends(communication) ? here * (members - here)
                                                       : most_messages(communication.kind, members);
    size.messages += messages;
    size.between_stages += messages;
  };
  for (const LoweredStage& stage : program.stages)
    walk(stage,
         Visitor{[&](const Call&, Position, const Post& post) {
                   add(stage, stage.communications[at(post.communication)]);
                 },
                 [&](const Call&, Position, const Wait& wait) {
                   const Communication& awaited = stage.communications[at(wait.communication)];
                   if (only_receives(awaited)) add(stage, awaited);
                 }});
  return size;
}

}  // namespace medley
