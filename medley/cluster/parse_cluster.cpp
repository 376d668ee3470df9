#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "medley/base/error.h"
#include "medley/cluster/cluster.h"
#include "medley/cluster/kind_names.h"
#include "medley/cluster/prices.h"
#include "medley/cluster/yaml_reader.h"

namespace medley {
namespace {

constexpr int64_t kMostDevices = 65536;
constexpr double kMostLatency = 3600;  // seconds
constexpr double kHighestPrice = 1e9;  // of one node, per hour

std::map<DType, double> parse_rates(const YamlValue& value) {
  std::map<DType, double> rates;
  const YamlFields fields = value.fields();
  for (const auto& [key, rate] : fields.all()) {
    const auto dtype = parse_dtype(key);
    if (!dtype) rate.fail("unknown dtype, expected f64, f32, f16, bf16, ...");
    rates[*dtype] = rate.positive_quantity(Dimension::kFlopRate);
  }
  return rates;
}

double price_from(const YamlValue& value) {
  const double price = value.number_from_zero();
  if (price > kHighestPrice) value.fail(fmt::format("must be at most {:.0f}", kHighestPrice));
  return price;
}

DType read_bf16_as(const YamlValue& value) {
  const std::string text = value.text();
  const auto dtype = parse_bf16_as(text);
  if (!dtype) value.fail(fmt::format("expected bf16, f16 or f32: {}", text));
  return *dtype;
}

// The section `devices`: the user's own types, resolved on demand, since one may be based on
// another.
class OwnKinds {
 public:
  OwnKinds(const YamlValue* section, const Catalogue& catalogue) : catalogue_(catalogue) {
    if (section) values_ = section->fields().all();
  }

  // `place`: location of the name.
  DeviceKind find(const std::string& name, const YamlValue& place) {
    if (const auto done = kinds_.find(name); done != kinds_.end()) return done->second;
    if (const auto own = values_.find(name); own != values_.end()) {
      if (!under_way_.insert(name).second)
        place.fail(fmt::format("device type is based on itself: {}", name));
      DeviceKind kind = parse(name, own->second);
      under_way_.erase(name);
      return kinds_[name] = kind;
    }
    return from_catalogue(name, place);
  }

  // Returns the price of one device per hour; a preemptible pool pays the spot price, if any.
  double price_of(const DeviceKind& kind, bool preemptible) const {
    const auto found = prices_.find(kind.name);
    if (found == prices_.end()) return 0;
    const auto& [price, spot] = found->second;
    return preemptible && spot ? *spot : price;
  }

  bool has_price(const DeviceKind& kind) const { return prices_.contains(kind.name); }

  // Checks unused types too.
  void check_all() {
    for (const auto& [name, value] : values_) find(name, value);
  }

 private:
  DeviceKind from_catalogue(const std::string& name, const YamlValue& place) const {
    const std::vector<std::string> meant = kinds_meant(catalogue_, name);
    if (meant.size() == 1) return catalogue_.at(meant[0]);
    if (!meant.empty())
      place.fail(
          fmt::format("{} may be any of these, say which: {}", name, fmt::join(meant, ", ")));
    std::vector<std::string> known;
    for (const auto& [each, kind] : catalogue_) known.push_back(each);
    for (const auto& [each, value] : values_) known.push_back(each);
    const std::vector<std::string> near = near_names(known, name);
    place.fail(fmt::format("unknown device type: {} ({}`medley list devices` shows all)",
                           name,
                           near.empty() ? "" : fmt::format("near: {}; ", fmt::join(near, ", "))));
  }

  DeviceKind base_of(const std::string& name, const YamlFields& fields) {
    if (const YamlValue* based_on = fields.find("based_on")) {
      const std::string base = based_on->text();
      return base == name ? from_catalogue(base, *based_on) : find(base, *based_on);
    }
    if (catalogue_.contains(name)) return catalogue_.at(name);
    for (const char* key : {"sustained", "memory", "memory_bandwidth", "launch_latency"})
      if (!fields.find(key))
        fields.mapping().fail(fmt::format("a kind that is based on none needs: {}", key));
    return {};
  }

  DeviceKind parse(const std::string& name, const YamlValue& value) {
    const YamlFields fields = value.fields();
    fields.only({"based_on",
                 "speed",
                 "memory",
                 "memory_bandwidth",
                 "launch_latency",
                 "peak",
                 "sustained",
                 "price_per_hour",
                 "spot_price_per_hour",
                 "bf16_as"});
    parse_prices(name, fields);
    DeviceKind kind = base_of(name, fields);
    kind.name = name;
    if (const YamlValue* speed = fields.find("speed"))
      kind = scaled(kind, speed->positive_number());
    if (const YamlValue* memory = fields.find("memory"))
      kind.memory_bytes = memory->positive_quantity(Dimension::kMemory);
    if (const YamlValue* bandwidth = fields.find("memory_bandwidth"))
      kind.memory_bandwidth = bandwidth->positive_quantity(Dimension::kBandwidth);
    if (const YamlValue* latency = fields.find("launch_latency"))
      kind.launch_latency = latency->quantity_from_zero(Dimension::kDuration);
    if (const YamlValue* sustained = fields.find("sustained"))
      for (const auto& [dtype, rate] : parse_rates(*sustained)) kind.sustained[dtype] = rate;
    if (const YamlValue* peak = fields.find("peak"))
      for (const auto& [dtype, rate] : parse_rates(*peak)) kind.peak[dtype] = rate;
    if (const YamlValue* as = fields.find("bf16_as")) kind.bf16_as = read_bf16_as(*as);
    for (const auto& [dtype, rate] : kind.sustained)
      if (double& peak = kind.peak[dtype]; peak < rate) peak = rate;
    return kind;
  }

  void parse_prices(const std::string& name, const YamlFields& fields) {
    const YamlValue* price = fields.find("price_per_hour");
    const YamlValue* spot = fields.find("spot_price_per_hour");
    if (spot && !price) spot->fail("needs a price_per_hour beside it");
    if (!price) return;
    auto& [full, less] = prices_[name];
    full = price_from(*price);
    if (spot) less = price_from(*spot);
  }

  const Catalogue& catalogue_;
  std::map<std::string, YamlValue> values_;
  std::map<std::string, std::pair<double, std::optional<double>>> prices_;  // per device
  std::map<std::string, DeviceKind> kinds_;
  std::set<std::string> under_way_;
};

// Names become parts of device names, whose separator is "/".
std::string parse_name(const YamlValue& value) {
  std::string name = value.text();
  const bool plain = name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
                     });
  if (!plain) value.fail("expected a name of letters, digits, '-', '_' and '.', at most 64");
  return name;
}

template <typename Named>
void check_new_name(const std::vector<Named>& named,
                    const std::string& name,
                    const YamlValue& place) {
  for (const Named& each : named)
    if (each.name == name) place.fail(fmt::format("name stands twice: {}", name));
}

NodePool parse_pool(const YamlFields& fields, OwnKinds& kinds) {
  fields.only({"name", "count", "device", "devices_per_node", "preemptible", "price_per_hour"});
  NodePool pool;
  pool.name = parse_name(fields.require("name"));
  pool.count = static_cast<int>(fields.require("count").positive_integer(kMostDevices));
  const YamlValue& device = fields.require("device");
  pool.kind = kinds.find(device.text(), device);
  pool.devices_per_node =
      static_cast<int>(fields.require("devices_per_node").positive_integer(kMostDevices));
  if (const YamlValue* preemptible = fields.find("preemptible"))
    pool.preemptible = preemptible->boolean();
  if (const YamlValue* price = fields.find("price_per_hour"))
    pool.price_per_hour = price_from(*price);
  else
    pool.price_per_hour = pool.devices_per_node * kinds.price_of(pool.kind, pool.preemptible);
  return pool;
}

std::vector<std::string> parse_pools_list(const YamlValue& value,
                                          const std::vector<NodePool>& pools) {
  std::vector<std::string> names;
  for (const YamlValue& item : value.items()) {
    const std::string name = item.text();
    if (std::none_of(
            pools.begin(), pools.end(), [&](const NodePool& pool) { return pool.name == name; })) {
      std::vector<std::string_view> known;
      known.reserve(pools.size());
      for (const NodePool& pool : pools) known.push_back(pool.name);
      item.fail(fmt::format("unknown node pool: {} (known: {})", name, fmt::join(known, ", ")));
    }
    if (std::find(names.begin(), names.end(), name) != names.end())
      item.fail(fmt::format("node pool stands twice: {}", name));
    names.push_back(name);
  }
  if (names.empty()) value.fail("expected at least one node pool: an empty list");
  return names;
}

MessageCurve::Point parse_point(const YamlValue& value) {
  const std::vector<YamlValue> both = value.items();
  if (both.size() != 2) value.fail("expected a size and a bandwidth: [1 MiB, 11.7 GB/s]");
  const double bytes = both[0].positive_quantity(Dimension::kMemory);
  if (bytes < 1 || bytes > 1e15) both[0].fail("must be from 1 B to 1000 TB");
  return {static_cast<int64_t>(bytes), both[1].positive_quantity(Dimension::kBandwidth)};
}

MessageCurve parse_curve(const YamlFields& fields) {
  fields.only({"devices", "points"});
  MessageCurve curve;
  curve.devices = static_cast<int>(fields.require("devices").positive_integer(kMostDevices));
  const YamlValue& points = fields.require("points");
  for (const YamlValue& item : points.items()) {
    const MessageCurve::Point point = parse_point(item);
    if (!curve.points.empty()) {
      const MessageCurve::Point& last = curve.points.back();
      if (point.bytes <= last.bytes) item.fail("sizes must ascend");
      if (static_cast<double>(point.bytes) / point.bandwidth <
          static_cast<double>(last.bytes) / last.bandwidth)
        item.fail("takes less time than the shorter message before it");
    }
    curve.points.push_back(point);
  }
  if (curve.points.empty()) points.fail("expected at least one point: an empty list");
  return curve;
}

std::vector<MessageCurve> parse_curves(const YamlValue& value) {
  std::vector<MessageCurve> curves;
  for (const YamlValue& item : value.items()) {
    curves.push_back(parse_curve(item.fields()));
    if (curves.size() > 1 && curves.back().devices <= curves[curves.size() - 2].devices)
      item.fail("numbers of devices must ascend");
  }
  return curves;
}

Network parse_network(const YamlFields& fields, const std::vector<NodePool>& pools) {
  fields.only(
      {"name", "inside", "pools", "connects", "bandwidth", "latency", "trunk", "curves", "flows"});
  Network network;
  network.name = parse_name(fields.require("name"));
  const YamlValue* inside = fields.find("inside");
  const YamlValue* connects = fields.find("connects");
  if ((inside != nullptr) == (connects != nullptr))
    fields.mapping().fail("expected one of: inside, connects");
  if (inside && inside->text() != "node")
    inside->fail(fmt::format("expected node: {}", inside->text()));
  network.inside_node = inside != nullptr;
  if (connects) network.connects = parse_pools_list(*connects, pools);
  if (const YamlValue* of = fields.find("pools")) {
    if (connects) of->fail("goes with inside only");
    network.connects = parse_pools_list(*of, pools);
  }
  network.bandwidth = fields.require("bandwidth").positive_quantity(Dimension::kBandwidth);
  const YamlValue& latency = fields.require("latency");
  network.latency = latency.quantity_from_zero(Dimension::kDuration);
  if (network.latency > kMostLatency)
    latency.fail(fmt::format("must be at most {} s", kMostLatency));
  if (const YamlValue* trunk = fields.find("trunk")) {
    if (inside || network.connects.size() < 2)
      trunk->fail("needs connects with two node pools or more");
    network.trunk = trunk->positive_quantity(Dimension::kBandwidth);
  }
  if (const YamlValue* curves = fields.find("curves")) network.curves = parse_curves(*curves);
  if (const YamlValue* flows = fields.find("flows")) {
    if (flows->text() != "all" && flows->text() != "one")
      flows->fail(fmt::format("expected all or one: {}", flows->text()));
    network.one_flow = flows->text() == "one";
  }
  return network;
}

void check_number_of_devices(const std::vector<NodePool>& pools, const YamlValue& place) {
  int64_t total = 0;
  for (const NodePool& pool : pools) {
    total += int64_t{pool.count} * pool.devices_per_node;
    if (total > kMostDevices) place.fail(fmt::format("must be at most {} devices", kMostDevices));
  }
}

Cluster parse(const YamlValue& document, const Catalogue& catalogue, bool has_prices) {
  const YamlFields fields = document.fields();
  fields.only({"format", "version", "nodes", "networks", "devices"});
  const YamlValue& format = fields.require("format");
  if (format.text() != "medley-cluster")
    format.fail(fmt::format("expected medley-cluster: {}", format.text()));
  const YamlValue& version = fields.require("version");
  if (version.text() != "1") version.fail(fmt::format("expected 1: {}", version.text()));

  OwnKinds kinds(fields.find("devices"), catalogue);
  kinds.check_all();
  Cluster cluster;
  const YamlValue& nodes = fields.require("nodes");
  for (const YamlValue& item : nodes.items()) {
    NodePool pool = parse_pool(item.fields(), kinds);
    if (has_prices && !item.fields().find("price_per_hour") && !kinds.has_price(pool.kind))
      item.fail(
          "has no price, expected price_per_hour of the node or of its device; 0 for what is free");
    check_new_name(cluster.pools, pool.name, item.fields().require("name"));
    cluster.pools.push_back(std::move(pool));
  }
  if (cluster.pools.empty()) nodes.fail("expected at least one entry: an empty list");
  check_number_of_devices(cluster.pools, nodes);
  cluster.devices = list_devices(cluster.pools);
  if (const YamlValue* networks = fields.find("networks"))
    for (const YamlValue& item : networks->items()) {
      Network network = parse_network(item.fields(), cluster.pools);
      check_new_name(cluster.networks, network.name, item.fields().require("name"));
      cluster.networks.push_back(std::move(network));
    }
  return cluster;
}

Cluster read_with(std::string_view yaml,
                  std::string_view file,
                  const Catalogue& catalogue,
                  bool has_prices) {
  const YamlValue document = read_yaml(yaml, file);
  try {
    return parse(document, catalogue, has_prices);
  } catch (const YAML::Exception& error) {  // raised by the library's lazy nodes
    throw Error(
        Blame::kCaller,
        fmt::format("{}:{}: not YAML: {}", file, std::max(error.mark.line, 0) + 1, error.msg));
  }
}

}  // namespace

DeviceKind scaled(DeviceKind kind, double speed) {
  for (auto* rates : {&kind.peak, &kind.sustained})
    for (auto& [dtype, rate] : *rates) rate *= speed;
  kind.memory_bandwidth *= speed;
  kind.launch_latency /= speed;
  return kind;
}

Cluster parse_cluster(std::string_view yaml, std::string_view file, const Catalogue& catalogue) {
  return read_with(yaml, file, catalogue, false);
}

Cluster parse_priced_cluster(std::string_view yaml,
                             std::string_view file,
                             const Catalogue& catalogue) {
  return read_with(yaml, file, catalogue, true);
}

}  // namespace medley
