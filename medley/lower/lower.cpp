#include "medley/lower/lower.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/base/parallel.h"
#include "medley/base/sha256.h"
#include "medley/lower/connect.h"
#include "medley/lower/cross_entropy.h"
#include "medley/lower/gradient_syncs.h"
#include "medley/lower/graph_limits.h"
#include "medley/lower/lower_stage.h"
#include "medley/plan/compute_types.h"

namespace medley {
namespace {

// Returns [device] workspace bytes of kernels, or empty.
std::vector<int64_t> workspaces_of(const std::vector<int>& devices, const Cluster& cluster) {
  std::vector<int64_t> bytes;
  for (int device : devices)
    bytes.push_back(static_cast<int64_t>(cluster.kind(device).workspace_bytes));
  const bool none = std::ranges::all_of(bytes, [](int64_t each) { return each == 0; });
  return none ? std::vector<int64_t>{} : bytes;
}

std::vector<int> devices_of(const Mesh& mesh, const Cluster& cluster) {
  std::vector<int> devices;
  for (const std::string& name : mesh.devices) {
    const std::optional<int> device = find_device(cluster, name);
    if (!device)
      throw Error(Blame::kCaller,
                  fmt::format("plan: mesh.devices: the cluster has no device \"{}\"", name));
    devices.push_back(*device);
  }
  return devices;
}

}  // namespace

Program lower(const GraphAnalysis& analysis,
              std::vector<Completed> completed,
              const Plan& plan,
              const Cluster& cluster,
              const LowerOptions& options) {
  std::vector<DecidedStage> decided;
  int64_t first_row = 0;
  for (size_t p = 0; p < plan.pipelines.size(); ++p) {
    const Pipeline& pipeline = plan.pipelines[p];
    for (size_t s = 0; s < pipeline.stages.size(); ++s) {
      const std::vector<int> devices = devices_of(pipeline.stages[s].mesh, cluster);
      decided.push_back({std::move(completed.at(decided.size())),
                         microbatches_of(pipeline, s),
                         devices,
                         pipeline.stages[s].mesh.shape,
                         count_batches(plan),
                         static_cast<int>(p),
                         first_row,
                         types_of(devices, analysis.graph, plan, cluster),
                         fewest_classes(devices, cluster),
                         workspaces_of(devices, cluster)});
    }
    for (const Microbatch& microbatch : pipeline.microbatches) first_row += microbatch.rows;
  }
  check_one_pipeline(plan, analysis.graph);
  check_cross_sample(analysis, plan);
  std::vector<Connections> connections = connect(decided, plan);
  const int64_t bytes = bucket_bytes(options, cluster, connections[0].all_devices.size());
  connect_gradient_syncs(decided, plan, analysis.graph, bytes, connections);
  check_buffers_in_one_stage(decided, connections);
  Program program;
  program.graph_hash = analysis.graph_hash;
  if (options.hash_plan) program.plan_hash = sha256_hex(print(plan));
  program.global_batch = plan.global_batch;
  program.microbatches_are_batches = count_batches(plan) > 0;
  program.stages.resize(decided.size());
  for_each_in_parallel(decided.size(), [&](size_t s) {
    LowerOptions chosen = options;
    chosen.bucket_bytes = bucket_bytes(options, cluster, decided[s].devices.size());
    program.stages[s] = lower_stage(decided[s], connections[s], plan.global_batch, chosen);
  });
  verify(program);
  return program;
}

Program lower(const Graph& graph,
              const Plan& plan,
              const Cluster& cluster,
              const Optimizer& optimizer,
              const LowerOptions& options) {
  return lower(analyse(graph, plan, cluster, optimizer), plan, cluster, options);
}

Program lower(const GraphAnalysis& analysis,
              const Plan& plan,
              const Cluster& cluster,
              const LowerOptions& options) {
  return lower(analysis, complete_stages(analysis, plan), plan, cluster, options);
}

Program lower(PreparedStages& prepared,
              const Plan& plan,
              const Cluster& cluster,
              const LowerOptions& options) {
  return lower(prepared.analysis(), complete_stages(prepared, plan), plan, cluster, options);
}

LoweredStage lower_alone(Completed stage,
                         const Plan& plan,
                         const Cluster& cluster,
                         const LowerOptions& options) {
  const Pipeline& pipeline = only_pipeline(plan);
  MEDLEY_CHECK_EQ(pipeline.stages.size(), size_t{1});
  const std::vector<int> devices = devices_of(pipeline.stages[0].mesh, cluster);
  const std::vector<DType> types = types_of(devices, stage.prepared->graph, plan, cluster);
  const DecidedStage decided{complete_stage(std::move(stage), plan, 0, 0),
                             pipeline.microbatches,
                             devices,
                             pipeline.stages[0].mesh.shape,
                             count_batches(plan),
                             0,
                             0,
                             types,
                             fewest_classes(devices, cluster),
                             workspaces_of(devices, cluster)};
  LowerOptions chosen = options;
  chosen.bucket_bytes = bucket_bytes(options, cluster, decided.devices.size());
  return lower_stage(decided, connect_alone(decided), plan.global_batch, chosen);
}

}  // namespace medley
