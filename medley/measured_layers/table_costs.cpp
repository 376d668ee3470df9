#include "medley/measured_layers/table_costs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "medley/base/error.h"
#include "medley/network/topology.h"

namespace medley {
namespace {

// Returns the curve for this number of senders; null if the network has none.
const MessageCurve* curve_for(const Network& network, int devices) {
  const MessageCurve* found = network.curves.empty() ? nullptr : &network.curves.front();
  for (const MessageCurve& curve : network.curves)
    if (curve.devices <= devices) found = &curve;
  return found;
}

// Returns the time of sends from `devices` of a node's devices, by the bytes of all nodes.
LinkCurve side(const Network& network, int nodes, int devices) {
  const MessageCurve* curve = curve_for(network, devices);
  const Nanoseconds latency = to_nanoseconds({network.latency});
  if (!curve) return constant_bandwidth({network.bandwidth * nodes}, latency);
  // Fewer devices than the curve's share it; more are limited by it.
  LinkCurve link{{}, latency};
  for (const MessageCurve::Point& point : curve->points) {
    const double size = static_cast<double>(point.bytes) * curve->devices;
    link.points.push_back(
        {{static_cast<int64_t>(size) * nodes}, to_nanoseconds({size / point.bandwidth})});
  }
  return link;
}

// Returns the slower one of two sides of a link, at the sizes of both.
LinkCurve slower(const LinkCurve& a, const LinkCurve& b) {
  std::set<Bytes> sizes;
  for (const LinkCurve* each : {&a, &b})
    for (const LinkCurve::Point& point : each->points) sizes.insert(point.size);
  LinkCurve link{{}, std::max(a.latency, b.latency)};
  for (const Bytes size : sizes)
    link.points.push_back({size, std::max(occupied(a, size), occupied(b, size))});
  return link;
}

std::vector<int64_t> running_sums(const std::vector<int64_t>& values) {
  std::vector<int64_t> sums{0};
  for (const int64_t value : values) sums.push_back(sums.back() + value);
  return sums;
}

int64_t between(const std::vector<int64_t>& sums, int begin, int end) {
  return sums[at(end)] - sums[at(begin)];
}

Bytes times(double factor, int64_t bytes) {
  return {std::llround(factor * static_cast<double>(bytes))};
}

Nanoseconds times(double factor, Nanoseconds time) {
  return to_nanoseconds({to_seconds(time).value * factor});
}

}  // namespace

TableCosts::TableCosts(const LayerTable& table, const Cluster& cluster)
    : table_(table),
      cluster_(cluster),
      table_hash_(hash(table)),
      cluster_hash_(hash(cluster)),
      degrees_(cluster.pools.size()) {
  int first = 0;
  for (const NodePool& pool : cluster_.pools) {
    first_device_.push_back(first);
    first += pool.count * pool.devices_per_node;
  }
  std::set<std::string> known;
  for (const MeasuredTimes& each : table_.times) known.insert(each.device);
  for (int pool = 0; pool < pools(); ++pool) {
    const NodePool& of = cluster_.pools[at(pool)];
    std::set<int> degrees;
    for (const MeasuredTimes& each : table_.times)
      if (each.device == of.kind.name && of.devices_per_node % each.tensor_parallel == 0)
        degrees.insert(each.tensor_parallel);
    for (const int degree : degrees) add_times(pool, degree);
    degrees_[at(pool)] = {degrees.begin(), degrees.end()};
  }
  if (times_.empty()) {
    std::set<std::string> kinds;
    for (const NodePool& pool : cluster_.pools) kinds.insert(pool.kind.name);
    throw Error(
        Blame::kCaller,
        fmt::format("times: found those of {}, expected some for a kind of the cluster{}: {}",
                    known.empty() ? "no kind" : fmt::format("{}", fmt::join(known, ", ")),
                    std::ranges::any_of(kinds, [&](auto& k) { return known.contains(k); })
                        ? ", of a degree that divides its nodes"
                        : "",
                    fmt::join(kinds, ", ")));
  }
  std::vector<int64_t> is_tied(table_.layers.size());
  for (const MeasuredBytes& each : table_.bytes) {
    std::vector<int64_t> parameters, saved;
    ByteSums& sums = bytes_[each.tensor_parallel];
    for (size_t i = 0; i < table_.layers.size(); ++i) {
      const LayerBytes& bytes = each.kinds.at(table_.layers[i]);
      parameters.push_back(bytes.parameters.value);
      saved.push_back(bytes.saved.value);
      sums.tied = std::max(sums.tied, bytes.tied.value);
      if (bytes.tied.value > 0) is_tied[i] = 1;
    }
    sums.parameters = running_sums(parameters);
    sums.saved = running_sums(saved);
    sums.last_output = each.kinds.at(table_.layers.back()).output.value;
  }
  num_tied_ = running_sums(is_tied);
  for (const std::string& kind : table_.layers)
    outputs_.push_back(table_.bytes.front().kinds.at(kind).output.value);

  const Topology topology(cluster_);
  for (int from = 0; from < pools(); ++from)
    for (int to = 0; to < pools(); ++to)
      for (const bool same_node : {false, true}) {
        // Any other device of the other node, or of the same.
        const int a = first_device_[at(from)];
        const int next = from != to ? 0 : same_node ? 1 : devices_per_node(to);
        const int b = first_device_[at(to)] + next;
        const bool exists =
            from != to ? !same_node : next < (same_node ? devices_per_node(to) : devices(to));
        int found = -1;
        try {
          if (exists) found = topology.route(a, b).network;
        } catch (const Error&) {  // no common network
        }
        networks_.push_back(found);
      }
  for (int pool = 0; pool < pools(); ++pool)
    for (const bool same_node : {false, true})
      if (const Network* found = network(pool, pool, same_node))
        for (int devices = 1; devices <= devices_per_node(pool); ++devices)
          node_links_[{pool, same_node, devices}] = side(*found, 1, devices);
}

void TableCosts::add_times(int pool, int degree) {
  const std::string& kind = cluster_.pools[at(pool)].kind.name;
  // From most rows to fewest.
  std::map<std::string, LayerTimes> least;
  for (auto each = table_.times.rbegin(); each != table_.times.rend(); ++each) {
    if (each->device != kind || each->tensor_parallel != degree) continue;
    for (const auto& [name, measured] : each->kinds) {
      LayerTimes& at_most = least.try_emplace(name, measured).first->second;
      at_most.forward = std::min(at_most.forward, measured.forward);
      at_most.backward = std::min(at_most.backward, measured.backward);
      at_most.update = measured.update;
    }
    std::vector<int64_t> forward, backward, update;
    for (const std::string& layer : table_.layers) {
      forward.push_back(least.at(layer).forward.value);
      backward.push_back(least.at(layer).backward.value);
      update.push_back(least.at(layer).update.value);
    }
    times_[{pool, degree, each->rows}] = {
        running_sums(forward), running_sums(backward), running_sums(update)};
  }
}

int TableCosts::devices_per_node(int pool) const {
  return cluster_.pools[at(pool)].devices_per_node;
}
int TableCosts::devices(int pool) const {
  return cluster_.pools[at(pool)].count * devices_per_node(pool);
}
Bytes TableCosts::memory(int pool) const {
  return {static_cast<int64_t>(cluster_.pools[at(pool)].kind.memory_bytes)};
}

const Network* TableCosts::network(int from, int to, bool same_node) const {
  const int found = networks_[at((from * pools() + to) * 2 + (same_node ? 1 : 0))];
  return found < 0 ? nullptr : &cluster_.networks[at(found)];
}

const LinkCurve* TableCosts::node_link(int pool, bool same_node, int devices) const {
  const auto found = node_links_.find({pool, same_node, devices});
  return found == node_links_.end() ? nullptr : &found->second;
}

std::optional<StageOption> TableCosts::stage(int begin,
                                             int end,
                                             const LayerMesh& mesh,
                                             int64_t rows) const {
  if (rows % mesh.replicas != 0) return std::nullopt;
  const int64_t own = rows / mesh.replicas;
  const std::optional<Measured> found = measured(begin, end, mesh, own);
  if (!found) return std::nullopt;
  const ByteSums& bytes = bytes_.at(mesh.tensor_parallel);
  const RunConstants& run = table_.run;
  const std::optional<Nanoseconds> reduce = all_reduce(begin, end, mesh);
  if (!reduce) return std::nullopt;
  StageOption stage;
  stage.forward = found->forward;
  stage.backward = found->backward;
  stage.update = found->update + *reduce;
  stage.persistent = times(run.state, parameters(begin, end, mesh.tensor_parallel)) + fixed(mesh);
  stage.saved = times(run.saved, own * between(bytes.saved, begin, end));
  // Per cut and direction, one message in use and one in transit; the gradient of the last output.
  if (begin > 0) stage.transient += cut(begin - 1, own) * int64_t{4};
  stage.transient +=
      end < layers() ? cut(end - 1, own) * int64_t{4} : Bytes{bytes.last_output * own};
  stage.forward += gather(begin - 1, mesh, own);
  stage.backward += gather(end - 1, mesh, own);
  stage.id = mesh.tensor_parallel;
  return stage;
}

std::optional<TableCosts::Measured> TableCosts::measured(int begin,
                                                         int end,
                                                         const LayerMesh& mesh,
                                                         int64_t rows) const {
  const auto above = times_.lower_bound({mesh.pool, mesh.tensor_parallel, rows});
  const auto is_of_mesh = [&](const auto& entry) {
    return std::get<0>(entry.first) == mesh.pool &&
           std::get<1>(entry.first) == mesh.tensor_parallel;
  };
  if (above == times_.end() || !is_of_mesh(*above)) return std::nullopt;
  const auto sum = [&](const Sums& sums) {
    return Measured{{between(sums.forward, begin, end)},
                    {between(sums.backward, begin, end)},
                    {between(sums.update, begin, end)}};
  };
  const Measured more = sum(above->second);
  const int64_t most = std::get<2>(above->first);
  if (most == rows) return more;
  if (above == times_.begin() || !is_of_mesh(*std::prev(above))) return std::nullopt;
  const Measured fewer = sum(std::prev(above)->second);
  const int64_t least = std::get<2>(std::prev(above)->first);
  const double share = static_cast<double>(rows - least) / static_cast<double>(most - least);
  const auto on_the_line = [&](Nanoseconds a, Nanoseconds b) {
    return Nanoseconds{a.value + std::llround(share * static_cast<double>(b.value - a.value))};
  };
  return Measured{on_the_line(fewer.forward, more.forward),
                  on_the_line(fewer.backward, more.backward),
                  on_the_line(fewer.update, more.update)};
}

std::string TableCosts::misfit(const LayerMesh& mesh, int64_t rows) const {
  const NodePool& pool = cluster_.pools[at(mesh.pool)];
  if (const std::string why = unmeasured(mesh.pool); !why.empty())
    return fmt::format("pool: found {}, expected another: {}", pool.name, why);
  if (std::ranges::find(degrees(mesh.pool), mesh.tensor_parallel) == degrees(mesh.pool).end())
    return fmt::format(
        "tensor_parallel: found {}, expected a degree that was measured on {} and divides the {} "
        "devices of a node: {}",
        mesh.tensor_parallel,
        pool.kind.name,
        pool.devices_per_node,
        fmt::join(degrees(mesh.pool), ", "));
  if (rows % mesh.replicas != 0)
    return fmt::format(
        "replicas: found {}, expected a number that divides the {} rows of a "
        "micro-batch",
        mesh.replicas,
        rows);
  const int64_t own = rows / mesh.replicas;
  if (!measured(0, layers(), mesh, own)) {
    const auto first = times_.lower_bound({mesh.pool, mesh.tensor_parallel, 0});
    const auto behind = times_.upper_bound({mesh.pool, mesh.tensor_parallel, INT64_MAX});
    return fmt::format(
        "replicas: found {} row{} for each of {}, expected {} to {}, as measured on {} at degree "
        "{}",
        own,
        own == 1 ? "" : "s",
        mesh.replicas,
        std::get<2>(first->first),
        std::get<2>(std::prev(behind)->first),
        pool.kind.name,
        mesh.tensor_parallel);
  }
  if (!all_reduce(0, layers(), mesh))
    return fmt::format("replicas: found {} on {}, expected a network {}: gradients have no way",
                       mesh.replicas,
                       pool.name,
                       mesh.devices() > pool.devices_per_node && !links_nodes(mesh.pool)
                           ? "between its nodes"
                           : "inside its nodes");
  return "";
}

std::string TableCosts::unmeasured(int pool) const {
  const NodePool& of = cluster_.pools[at(pool)];
  if (!degrees(pool).empty()) return "";
  std::set<int> known;
  for (const MeasuredTimes& each : table_.times)
    if (each.device == of.kind.name) known.insert(each.tensor_parallel);
  if (known.empty()) return fmt::format("the table has no times of {}", of.kind.name);
  return fmt::format(
      "the table has times of {} at degree {} only, which does not divide the {} "
      "devices of a node",
      of.kind.name,
      fmt::join(known, ", "),
      of.devices_per_node);
}

bool TableCosts::links_nodes(int pool) const {
  return cluster_.pools[at(pool)].count == 1 || network(pool, pool, false) != nullptr;
}

Bytes TableCosts::fixed(const LayerMesh& mesh) const {
  const KnownRuntime& runtime = kRuntimes.at(table_.run.runtime);
  const Bytes own = mesh.tensor_parallel > 1 ? runtime.fixed_divided : runtime.fixed;
  const double kernels = cluster_.pools[at(mesh.pool)].kind.workspace_bytes;
  return table_.run.fixed.value_or(own + Bytes{static_cast<int64_t>(kernels)});
}

Nanoseconds TableCosts::gather(int layer, const LayerMesh& mesh, int64_t rows) const {
  const LinkCurve* fabric = node_link(mesh.pool, true, 1);
  if (mesh.tensor_parallel == 1 || !fabric || layer < 0 || layer + 1 == layers()) return {};
  // Each device of a ring sends this to the next.
  return occupied(*fabric,
                  cut(layer, rows) * int64_t{mesh.tensor_parallel - 1} / mesh.tensor_parallel);
}

int64_t TableCosts::parameters(int begin, int end, int degree) const {
  const ByteSums& bytes = bytes_.at(degree);
  const int64_t copies = std::max<int64_t>(0, between(num_tied_, begin, end) - 1);
  return between(bytes.parameters, begin, end) - copies * bytes.tied;
}

bool TableCosts::has_tied(int begin, int end) const { return between(num_tied_, begin, end) > 0; }

Nanoseconds TableCosts::add_tied(const LayerMesh& one, const LayerMesh& other) const {
  // Each side sends the parts of all its devices.
  const auto whole = [&](const LayerMesh& mesh) {
    return Bytes{bytes_.at(mesh.tensor_parallel).tied * mesh.devices()};
  };
  const Bytes bytes = std::max(whole(one), whole(other));
  const auto up = link(one.pool, one.devices(), other.pool, other.devices());
  const auto down = link(other.pool, other.devices(), one.pool, one.devices());
  if (!up || !down) return {};  // in the stages between them, which all have it
  const Nanoseconds time = std::max(occupied(*up, bytes), occupied(*down, bytes));
  return times(table_.run.all_reduce, time);
}

Nanoseconds TableCosts::transfer(const LinkCurve& link, Bytes bytes) const {
  const Nanoseconds time = occupied(link, bytes);
  return table_.run.blocking > 0 ? times(table_.run.blocking, time) : time;
}

std::optional<Nanoseconds> TableCosts::all_reduce(int begin, int end, const LayerMesh& mesh) const {
  const int per_node = std::min(mesh.replicas, devices_per_node(mesh.pool) / mesh.tensor_parallel);
  const int nodes = (mesh.replicas + per_node - 1) / per_node;
  const int together = per_node * mesh.tensor_parallel;  // devices per node
  const int64_t bytes = parameters(begin, end, mesh.tensor_parallel);
  // Each device of a ring sends this to the next.
  const auto ring = [](int64_t whole, int of) { return Bytes{2 * whole * (of - 1) / of}; };
  Nanoseconds time;
  if (per_node > 1) {
    const LinkCurve* fabric = node_link(mesh.pool, true, 1);
    if (!fabric) return std::nullopt;
    const bool in_turn = network(mesh.pool, mesh.pool, true)->one_flow;
    time += occupied(*fabric, ring(bytes, per_node)) * int64_t{in_turn ? together : 1};
  }
  if (nodes > 1) {
    // All devices of a node sum concurrently, each its part of the node's replicas, unless the
    // network uses one flow.
    const Network* between_nodes = network(mesh.pool, mesh.pool, false);
    if (!between_nodes) return std::nullopt;
    const LinkCurve* lan = node_link(mesh.pool, false, between_nodes->one_flow ? 1 : together);
    if (!lan) return std::nullopt;
    time += occupied(*lan, ring(bytes * mesh.tensor_parallel, nodes));
  }
  return times(table_.run.all_reduce, time);
}

std::optional<LinkCurve> TableCosts::link(int from,
                                          int from_devices,
                                          int to,
                                          int to_devices) const {
  // Stages of a pool with a single node share that node.
  const bool same_node = from == to && devices(from) == devices_per_node(from);
  const Network* between_them = network(from, to, same_node);
  if (!between_them) return std::nullopt;
  const auto side_of = [&](int pool, int devices) {
    if (same_node) return side(*between_them, devices, 1);
    const int node = devices_per_node(pool);
    const int nodes = (devices + node - 1) / node;
    return side(*between_them, nodes, devices / nodes);
  };
  return slower(side_of(from, from_devices), side_of(to, to_devices));
}

Bytes TableCosts::cut(int layer, int64_t rows) const { return {outputs_[at(layer)] * rows}; }

}  // namespace medley
