#include "medley/plan/compute_types.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/graph/replace_bf16.h"

namespace medley {
namespace {

[[noreturn]] void refuse_type(const std::string& kind,
                              const std::string& found,
                              const std::string& expected) {
  throw Error(Blame::kCaller,
              fmt::format("bf16_as[\"{}\"]: found {}, expected {}", kind, found, expected));
}

// Returns the dtypes of the plan's devices; ignores unknown names, which other checks report.
std::map<std::string, DType> types_of_plan(const Plan& plan, const Cluster& cluster) {
  std::map<std::string, DType> types;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const std::string& name : stage.mesh.devices)
        if (const std::optional<int> device = find_device(cluster, name)) {
          const DeviceKind& kind = cluster.kind(*device);
          types.emplace(kind.name, bf16_as(plan, kind));
        }
  return types;
}

}  // namespace

bool computes_in_f16(const Plan& plan, const Graph& graph, const Cluster& cluster) {
  const std::map<std::string, DType> types = types_of_plan(plan, cluster);
  return std::ranges::any_of(types, [](const auto& each) { return each.second == DType::kF16; }) &&
         has_bf16(graph);
}

void note_types(Plan& plan, const Graph& graph, const Cluster& cluster) {
  if (!has_bf16(graph)) return;
  for (const auto& [kind, dtype] : types_of_plan(plan, cluster))
    if (dtype != DType::kBF16) plan.bf16_as[kind] = dtype;
}

std::vector<DType> types_of(const std::vector<int>& devices,
                            const Graph& graph,
                            const Plan& plan,
                            const Cluster& cluster) {
  std::vector<DType> types;
  for (int device : devices) types.push_back(bf16_as(plan, cluster.kind(device)));
  const bool differ = std::ranges::any_of(types, [](DType t) { return t != DType::kBF16; });
  return differ && has_bf16(graph) ? types : std::vector<DType>{};
}

void verify_types(const Plan& plan, const Cluster& cluster) {
  for (const auto& [name, dtype] : plan.bf16_as) {
    const auto pool =
        std::ranges::find(cluster.pools, name, [](const NodePool& each) { return each.kind.name; });
    if (pool == cluster.pools.end())
      refuse_type(name, "no device of that kind", "a device type of the cluster");
    if (dtype == DType::kBF16 && pool->kind.bf16_as != DType::kBF16)
      refuse_type(name,
                  "bf16, which it does not have",
                  fmt::format("{} or f32", to_string(pool->kind.bf16_as)));
  }
}

}  // namespace medley
