#include "medley/cli/explain.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "medley/base/at.h"
#include "medley/base/units.h"
#include "medley/cli/table.h"
#include "medley/stages/layers.h"

namespace medley {
namespace {

using Json = nlohmann::ordered_json;

std::vector<int32_t> structures(const std::vector<Layer>& layers, size_t begin, size_t end) {
  std::vector<int32_t> ids;
  for (size_t l = begin; l < end; ++l) ids.push_back(layers[l].structure);
  return ids;
}

// Returns the number of layers of the layer's block: 1 outside of blocks.
size_t size_of_block(const Layers& found, size_t l) {
  if (found.layers[l].block == kNone) return 1;
  const RepeatedBlock& block = found.blocks[at(found.layers[l].block)];
  size_t end = l;
  while (end < found.layers.size() &&
         found.layers[end].begin < found.layers[l].begin + block.length)
    ++end;
  return end - l;
}

Json row(const Graph& graph, const Layer& layer, size_t index, int64_t times) {
  int64_t parameters = 0;
  for (ValueId value : layer.parameters) parameters += num_bytes(type_of(graph, value), {});
  const std::vector<int64_t> one_row(graph.symbols.size(), 1);
  return {{"layer", index},
          {"times", times},
          {"structure", layer.structure},
          {"block", layer.block},
          {"module", layer.module},
          {"flops", layer.flops},
          {"backward_flops", layer.backward_flops},
          {"up_bytes", evaluate(total_bytes(graph, layer.up), one_row)},
          {"down_bytes", evaluate(total_bytes(graph, layer.down), one_row)},
          {"parameter_bytes", parameters}};
}

}  // namespace

nlohmann::ordered_json layers_json(const Graph& graph) {
  const Layers found = find_layers(graph, place(graph));
  Json json{{"graph", graph.name},
            {"layers", found.layers.size()},
            {"blocks", Json::array()},
            {"sequence", Json::array()}};
  for (const RepeatedBlock& block : found.blocks)
    json["blocks"].push_back({{"count", block.count}, {"ops", block.length}});
  for (size_t l = 0; l < found.layers.size();) {
    const size_t size = size_of_block(found, l);
    size_t end = l + size;
    while (found.layers[l].block != kNone && end + size <= found.layers.size() &&
           found.layers[end].block == found.layers[l].block &&
           structures(found.layers, end, end + size) == structures(found.layers, l, l + size))
      end += size;
    for (size_t i = l; i < l + size; ++i)
      json["sequence"].push_back(
          row(graph, found.layers[i], i, static_cast<int64_t>((end - l) / size)));
    l = end;
  }
  return json;
}

std::string layers_text(const nlohmann::ordered_json& layers) {
  std::string text = fmt::format(
      "{}: {} layers", layers["graph"].get<std::string>(), layers["layers"].get<int64_t>());
  for (const Json& block : layers["blocks"])
    text += fmt::format(
        ", {} equal blocks of {} ops", block["count"].get<int>(), block["ops"].get<int>());
  Table table(
      {"layer", "times", "structure", "forward", "backward", "up", "down", "parameters", "module"});
  for (const Json& row : layers["sequence"]) {
    const auto bytes = [&](const char* key) { return to_string(Bytes(row[key].get<int64_t>())); };
    const std::string module = row["module"].get<std::string>();
    table.add({fmt::format("{}", row["layer"].get<int64_t>()),
               fmt::format("{}", row["times"].get<int64_t>()),
               fmt::format("{}", row["structure"].get<int64_t>()),
               to_string(Flops(row["flops"].get<double>())),
               to_string(Flops(row["backward_flops"].get<double>())),
               bytes("up_bytes"),
               bytes("down_bytes"),
               bytes("parameter_bytes"),
               module.empty() ? "(the model)" : module});
  }
  return wrapped(text + ".\n\n") + table.text() +
         "forward, backward: per sample; up, down: bytes per sample over the cut after the layer\n";
}

}  // namespace medley
