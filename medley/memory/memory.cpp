#include "medley/memory/memory.h"

#include <map>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

int64_t workspace(const LoweredStage& stage, size_t device) {
  return stage.workspaces.empty() ? 0 : stage.workspaces[device];
}

MemoryUse follow(const LivenessFacts& facts, size_t device, std::vector<MemoryPoint>* points) {
  const LoweredStage& stage = facts.stage;
  MemoryMeter meter;
  Liveness live(facts, static_cast<int>(device), meter, points);
  for (const Input& input : stage.graph.inputs)
    if (stage.lifetimes[at(input.value)] == Lifetime::kRun) live.write(input.value);
  MemoryUse use;
  use.persistent = meter.live();
  use.saved.resize(stage.tables.size());
  live.keep(workspace(stage, device), MemoryPart::kWorkspaces);
  walk(stage,
       Visitor{
           [&](const Call&, Position at, CallBegin) { live.begin(at.call); },
           [&](const Call&, Position at, const StepKind auto& step) { live.follow(at.step, step); },
           [&](const Call& call, Position, CallEnd) {
             live.end();
             if (call.function == FunctionKind::kForward && call.ends())
               use.saved[at(call.microbatch)] = live.saved();
           }});
  use.peak = live.peak().bytes;
  use.peak_at = live.peak().at;
  use.at_peak = live.peak().parts;
  return use;
}

}  // namespace

std::string_view to_string(MemoryPart part) {
  constexpr std::string_view kNames[kNumMemoryParts] = {"parameters",
                                                        "buffers",
                                                        "optimizer",
                                                        "masters",
                                                        "gradients",
                                                        "batch",
                                                        "saved",
                                                        "communication",
                                                        "transient",
                                                        "workspaces"};
  return kNames[at(part)];
}

MemoryUse memory_use(const LoweredStage& stage, int device) {
  return follow(LivenessFacts(stage), at(device), nullptr);
}

std::vector<MemoryUse> memory_uses(const LoweredStage& stage) {
  const LivenessFacts facts(stage);
  // The first device of each dtype, workspace and sizes.
  std::map<std::pair<DType, std::vector<int64_t>>, size_t> first;
  std::vector<MemoryUse> uses;
  for (size_t d = 0; d < stage.devices.size(); ++d) {
    std::vector<int64_t> sizes = {workspace(stage, d)};
    for (const auto& of_microbatch : stage.tables)
      for (size_t symbol : facts.symbols) sizes.push_back(of_microbatch[d][symbol]);
    const auto [found, added] = first.try_emplace({bf16_as(stage, d), std::move(sizes)}, d);
    uses.push_back(added ? follow(facts, d, nullptr) : uses[found->second]);
  }
  return uses;
}

std::vector<DeviceMemory> memory_uses(const Program& program) {
  std::vector<std::vector<MemoryUse>> uses(program.stages.size());
  for_each_in_parallel(uses.size(), [&](size_t s) { uses[s] = memory_uses(program.stages[s]); });
  std::vector<DeviceMemory> all;
  for (size_t s = 0; s < uses.size(); ++s)
    for (size_t d = 0; d < uses[s].size(); ++d)
      all.push_back({static_cast<int>(s), program.stages[s].devices[d], std::move(uses[s][d])});
  return all;
}

MemoryUse memory_use(const LoweredStage& stage, int device, std::vector<MemoryPoint>& points) {
  return follow(LivenessFacts(stage), at(device), &points);
}

}  // namespace medley
