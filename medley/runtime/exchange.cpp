#include "medley/runtime/exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/program/groups.h"
#include "medley/program/lanes.h"

namespace medley {
namespace {

// Returns equal texts for equal cells. Devices with other cells have other tensors.
std::string cells_text(const GradientSync& sync) {
  const SyncTraffic traffic = traffic_of(sync);
  return fmt::format("{} tensors, [{}] and [{}] elements from each to each",
                     sync.tensors.size(),
                     fmt::join(traffic.first, ", "),
                     fmt::join(traffic.second, ", "));
}

int device_of(const Exchange& exchange) { return exchange.group[at(exchange.me)]; }

// A property that all devices of a group must agree on, as text.
using Property = std::string (*)(const Exchange& exchange);
constexpr Property kProperties[] = {
    [](const Exchange& x) { return x.name; },
    [](const Exchange& x) { return to_string(x.kind); },
    [](const Exchange& x) { return std::string(x.reduce == Reduce::kMax ? "maximum" : "sum"); },
    [](const Exchange& x) { return fmt::format("{} bytes per element", x.bytes_per_element); },
    [](const Exchange& x) {
      return traits_of(x.kind).own_group ? fmt::format("{} tensors", x.inputs.size()) : "";
    },
    [](const Exchange& x) {
      const CommunicationTraits& traits = traits_of(x.kind);
      if (traits.is_pairwise()) return std::string();
      if (traits.is_whole()) return fmt::format("{} bytes", x.bytes);
      return fmt::format("{} [{}]",
                         traits.receives ? "receive" : "send",
                         fmt::join(traits.receives ? x.receive : x.send, ", "));
    },
    [](const Exchange& x) { return x.sync ? cells_text(*x.sync) : ""; },
};

std::optional<std::string> different_messages(const Exchange& from, const Exchange& to) {
  const int64_t sent = from.send.at(at(to.me));
  const int64_t received = to.receive.at(at(from.me));
  if (sent == received) return std::nullopt;
  return fmt::format("device {} sends {} elements of {} to device {}, which expects {}",
                     device_of(from),
                     sent,
                     from.name,
                     device_of(to),
                     received);
}

}  // namespace

Exchange make_exchange(const LoweredStage& stage,
                       const Communication& communication,
                       int device,
                       const std::vector<int64_t>& symbols) {
  Exchange exchange;
  exchange.kind = communication.kind;
  exchange.reduce = communication.reduce;
  exchange.lane = communication.lane;
  exchange.stream = stream_of(communication);
  exchange.group = group_of(stage, communication, device);
  const int own = stage.devices.at(at(device));
  const auto found = std::find(exchange.group.begin(), exchange.group.end(), own);
  MEDLEY_CHECK(found != exchange.group.end());
  exchange.me = static_cast<int>(found - exchange.group.begin());
  exchange.name = communication.name;
  exchange.send = evaluate_all(communication.send, symbols);
  exchange.receive = evaluate_all(communication.receive, symbols);
  const CommunicationTraits& traits = traits_of(communication.kind);
  const bool receiver = communication.inputs.empty();
  const bool syncs = communication.kind == CommunicationKind::kGradientSync;
  if (traits.sends && !syncs) MEDLEY_CHECK_EQ(exchange.send.size(), exchange.group.size());
  if (traits.receives && !syncs) MEDLEY_CHECK_EQ(exchange.receive.size(), exchange.group.size());
  MEDLEY_CHECK(!receiver || syncs || only_receives(communication));
  MEDLEY_CHECK_EQ(syncs, communication.sync != nullptr);
  exchange.sync = communication.sync;
  if (traits.own_group) MEDLEY_CHECK_EQ(communication.inputs.size(), communication.outputs.size());
  for (ValueId value : receiver ? communication.outputs : communication.inputs) {
    const TensorType& type = stage.graph.values.at(at(value)).type;
    exchange.dtype = type.dtype;
    exchange.bytes_per_element = bytes_per_element(type.dtype);
    exchange.bytes += num_bytes(type, symbols);
  }
  return exchange;
}

std::optional<std::string> disagreement(const Exchange& a, const Exchange& b) {
  for (Property property : kProperties) {
    const std::string in_a = property(a), in_b = property(b);
    if (in_a == in_b) continue;
    if (a.name != b.name)
      return fmt::format(
          "device {} has {}; device {} has {}", device_of(a), a.name, device_of(b), b.name);
    return fmt::format("device {} has {}, {}; device {} has {}, {}",
                       device_of(a),
                       a.name,
                       in_a,
                       device_of(b),
                       b.name,
                       in_b);
  }
  if (a.sync || !traits_of(a.kind).is_pairwise()) return std::nullopt;
  if (auto different = different_messages(a, b)) return different;
  return different_messages(b, a);
}

}  // namespace medley
