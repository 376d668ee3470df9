#include "medley/cli/explain_pipelines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "medley/base/at.h"
#include "medley/base/units.h"
#include "medley/cli/explain_words.h"
#include "medley/cli/stage_names.h"
#include "medley/cli/table.h"
#include "medley/program/walk.h"
#include "medley/sim/gradient_sync_times.h"
#include "medley/sim/prices.h"
#include "medley/stages/layers.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

std::string seconds_text(const Json& row, const char* key) {
  return to_string(Seconds{row[key].get<double>()});
}

// The bytes between one pipeline's stages in a step, and the network that carries most.
struct Sent {
  int64_t bytes = 0;
  std::map<int, int64_t> by_network;
  void add(const Exchanges& exchanges, const Topology& topology) {
    for (const auto& [link, more] : exchanges.bytes_by_link) {
      const Link& on = topology.links()[at(link)];
      if (!on.name.ends_with(":out")) continue;
      bytes += more;
      by_network[on.network] += more;
    }
  }
};

Sent sent_by(const LoweredStage& stage, const CostModel& costs) {
  CommunicationPrices prices(stage, costs);
  Sent sent;
  walk(stage, [&](const Call& call, Position, const Post& post) {
    if (only_sends(stage.communications[at(post.communication)]))
      sent.add(prices.exchanges(post.communication, call.microbatch, 0), costs.topology());
  });
  return sent;
}

std::string network_name(const CostModel& costs, int network) {
  return network < 0 ? "" : costs.cluster().networks[at(network)].name;
}

}  // namespace

std::vector<LayerRange> layer_ranges(const Graph& graph, const Plan& plan) {
  const Positions positions = place(graph);
  const Layers found = find_layers(graph, positions);
  const std::vector<std::string> names = stable_names(graph);
  std::vector<LayerRange> ranges;
  for (size_t p = 0; p < plan.pipelines.size(); ++p) {
    LayerRange range;
    for (const int32_t cut : cuts_of(plan.pipelines[p], p, positions, names)) {
      const auto behind = std::ranges::upper_bound(found.layers, cut, {}, &Layer::begin);
      const auto layer = static_cast<int>(behind - found.layers.begin()) - 1;
      range.end = found.layers[at(layer)].begin < cut ? layer + 1 : layer;
      ranges.push_back(range);
      range.begin = layer;
    }
    range.end = static_cast<int>(found.layers.size());
    ranges.push_back(range);
  }
  return ranges;
}

std::string to_string(const LayerRange& range) {
  return range.end - range.begin == 1 ? fmt::format("{}", range.begin)
                                      : fmt::format("{}-{}", range.begin, range.end - 1);
}

Json pipelines_json(const Plan& plan, const CostModel* costs) {
  Json rows = Json::array();
  int64_t first_row = 0;
  for (size_t p = 0; p < plan.pipelines.size(); ++p) {
    const Pipeline& pipeline = plan.pipelines[p];
    std::vector<int64_t> microbatches;
    int64_t sum = 0;
    for (const Microbatch& microbatch : pipeline.microbatches) {
      microbatches.push_back(microbatch.rows);
      sum += microbatch.rows;
    }
    int devices = 0;
    std::map<std::string, int> kinds;
    for (const Stage& stage : pipeline.stages)
      for (const std::string& name : stage.mesh.devices) {
        ++devices;
        if (!costs) continue;
        const auto& all = costs->cluster().devices;
        const auto device = std::ranges::find(all, name, &Device::name);
        ++kinds[costs->cluster().kind(static_cast<int>(device - all.begin())).name];
      }
    rows.push_back(
        {{"pipeline", p},
         {"first_row", first_row},
         {"rows", sum},
         {"rows_share", static_cast<double>(sum) / static_cast<double>(plan.global_batch)},
         {"microbatches", microbatches},
         {"stages", pipeline.stages.size()},
         {"devices", devices},
         {"kinds", Json(kinds)}});
    first_row += sum;
  }
  return rows;
}

void add_measures(Json& pipelines,
                  const Program& program,
                  const CostModel& costs,
                  const Simulation& simulation) {
  struct Sum {
    Nanoseconds done, own, others;
    int64_t devices = 0;
    Sent sent;
  };
  std::vector<Sum> sums(pipelines.size());
  for (const LoweredStage& stage : program.stages) {
    const auto [bytes, by_network] = sent_by(stage, costs);
    Sent& sent = sums[at(stage.pipeline)].sent;
    sent.bytes += bytes;
    for (const auto& [network, more] : by_network) sent.by_network[network] += more;
  }
  for (const SimulatedDevice& device : simulation.devices) {
    Sum& sum = sums[at(program.stages[at(device.stage)].pipeline)];
    if (!device.backward.empty()) sum.done = std::max(sum.done, device.backward.back().end);
    sum.own += device.waits - device.others;
    sum.others += device.others;
    ++sum.devices;
  }
  for (size_t p = 0; p < sums.size(); ++p) {
    const auto& [done, own, others, devices, sent] = sums[p];
    const Nanoseconds time = simulation.step * devices;
    Json& row = pipelines[p];
    row["backward_done_seconds"] = to_seconds(done).value;
    row["waits_share"] = time.value > 0 ? own / time : 0.0;
    row["waits_for_pipelines_share"] = time.value > 0 ? others / time : 0.0;
    row["sends_bytes"] = sent.bytes;
    const auto most =
        std::ranges::max_element(sent.by_network, {}, [](const auto& each) { return each.second; });
    row["network"] =
        most == sent.by_network.end() ? std::string() : network_name(costs, most->first);
  }
}

std::string pipelines_text(const Json& pipelines) {
  const bool measured = pipelines.front().contains("backward_done_seconds");
  Table table("pipeline|rows|share|rows per micro-batch|stages|devices");
  std::string titles = "pipeline|backward phase ends after|idle for own stages";
  Table times(titles + "|idle for other pipelines|activations sent|over");
  for (const Json& row : pipelines) {
    const auto first = row["first_row"].get<int64_t>(), count = row["rows"].get<int64_t>();
    const std::string number = fmt::format("{}", row["pipeline"].get<int>());
    table.add({number,
               fmt::format("{}-{}", first, first + count - 1),
               percent(row["rows_share"].get<double>()),
               runs_text(row["microbatches"].get<std::vector<int64_t>>()),
               fmt::format("{}", row["stages"].get<int>()),
               row["kinds"].empty()
                   ? row["devices"].dump()
                   : kinds_text(row["kinds"].get<std::map<std::string, size_t>>())});
    if (measured)
      times.add({number,
                 seconds_text(row, "backward_done_seconds"),
                 percent(row["waits_share"].get<double>()),
                 percent(row["waits_for_pipelines_share"].get<double>()),
                 to_string(Bytes{row["sends_bytes"].get<int64_t>()}),
                 row["network"].get<std::string>()});
  }
  return table.text() + (measured ? "\n" + times.text() : "");
}

Json shared_json(const Program& program,
                 const std::vector<LayerRange>& layers,
                 const CostModel& costs,
                 const Simulation& simulation) {
  struct Sum {
    int64_t tensors = 0, bytes = 0, traffic = 0;
    Nanoseconds alone, takes, overlapped, most_of_link;
    int link = -1;
    std::vector<int> overlaps;
  };
  std::map<std::vector<int>, Sum> sums;  // by stages
  for (const GradientSyncTimes& sync : gradient_sync_times(program, costs, simulation)) {
    if (sync.of != GradientSync::Of::kGradients) continue;
    Sum& sum = sums[sync.stages];
    sum.tensors += sync.tensors;
    sum.bytes += sync.bytes;
    sum.traffic += sync.traffic;
    sum.alone += sync.alone;
    sum.takes += sync.ends - sync.begins;
    sum.overlapped += sync.overlapped;
    sum.overlaps.insert(sum.overlaps.end(), sync.overlaps.begin(), sync.overlaps.end());
    if (sync.alone < sum.most_of_link) continue;
    sum.most_of_link = sync.alone;
    sum.link = sync.link;
  }
  const std::vector<std::string> names = stage_names(program);
  const auto named = [&](std::vector<int> stages) {
    std::ranges::sort(stages);
    const auto rest = std::ranges::unique(stages);
    stages.erase(rest.begin(), rest.end());
    std::vector<std::string> result;
    for (int stage : stages) result.push_back(names[at(stage)]);
    return result;
  };
  Json rows = Json::array();
  for (const auto& [stages, sum] : sums) {
    LayerRange range = layers[at(stages[0])];
    for (int stage : stages)
      range = {std::max(range.begin, layers[at(stage)].begin),
               std::min(range.end, layers[at(stage)].end)};
    const Link* link = sum.link < 0 ? nullptr : &costs.topology().links()[at(sum.link)];
    rows.push_back({{"layers", range.begin < range.end ? to_string(range) : ""},
                    {"stages", named(stages)},
                    {"parameters", sum.tensors},
                    {"bytes", sum.bytes},
                    {"traffic_bytes", sum.traffic},
                    {"network", link ? network_name(costs, link->network) : ""},
                    {"link", link ? link->name : ""},
                    {"alone_seconds", to_seconds(sum.alone).value},
                    {"takes_seconds", to_seconds(sum.takes).value},
                    {"overlapped_seconds", to_seconds(sum.overlapped).value},
                    {"overlapped_share", sum.takes.value > 0 ? sum.overlapped / sum.takes : 1.0},
                    {"overlaps", named(sum.overlaps)}});
  }
  return rows;
}

// Stages without common layers have a tied weight.
std::string shared_text(const Json& shared) {
  Table table(
      "layers|gradients summed over|parameters|bytes|over|takes|overlapped|overlaps backward of");
  double takes = 0, overlapped = 0;
  int64_t bytes = 0, traffic = 0;
  for (const Json& row : shared) {
    const auto layers = row["layers"].get<std::string>();
    const auto joined = [&](const char* key, std::string_view between) {
      return fmt::format("{}", fmt::join(row[key].get<std::vector<std::string>>(), between));
    };
    table.add({layers.empty() ? "tied" : layers,
               joined("stages", " + "),
               fmt::format("{}", row["parameters"].get<int64_t>()),
               to_string(Bytes{row["bytes"].get<int64_t>()}),
               row["network"].get<std::string>(),
               seconds_text(row, "takes_seconds"),
               percent(row["overlapped_share"].get<double>()),
               joined("overlaps", ", ")});
    takes += row["takes_seconds"].get<double>();
    overlapped += row["overlapped_seconds"].get<double>();
    bytes += row["bytes"].get<int64_t>();
    traffic += row["traffic_bytes"].get<int64_t>();
  }
  return table.text() + wrapped(fmt::format("Gradient sync between stages: {} summed with {} of "
                                            "traffic in {}, of which {} overlap "
                                            "a backward phase.\n",
                                            to_string(Bytes{bytes}),
                                            to_string(Bytes{traffic}),
                                            to_string(Seconds{takes}),
                                            to_string(Seconds{overlapped})));
}

}  // namespace medley
