#include "medley/sim/schedule_request.h"

#include <algorithm>
#include <cmath>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/memory/memory.h"
#include "medley/program/walk.h"
#include "medley/sim/prices.h"

namespace medley {
namespace {

bool is_forward(FunctionKind kind) { return kind == FunctionKind::kForward; }

// The stages of a pipeline: `count` of them from `first` in the program.
struct Chain {
  size_t first = 0, count = 0;
  bool has(size_t stage) const { return stage >= first && stage < first + count; }
};

Chain chain_of(const Program& program, int pipeline) {
  const auto [begin, end] =
      std::ranges::equal_range(program.stages, pipeline, {}, &LoweredStage::pipeline);
  return {at(begin - program.stages.begin()), at(end - begin)};
}

// [microbatch][stage of the chain]
std::vector<std::vector<StageTimes>> stage_times(const Program& program,
                                                 const Chain& chain,
                                                 const Simulation& simulation) {
  std::vector<std::vector<StageTimes>> times(program.stages[chain.first].tables.size(),
                                             std::vector<StageTimes>(chain.count));
  for (const SimulatedDevice& device : simulation.devices) {
    if (!chain.has(at(device.stage))) continue;
    for (const SimulatedCall& each : device.calls) {
      if (!is_forward(each.call.function) && !is_backward(each.call.function)) continue;
      StageTimes& stage = times[at(each.call.microbatch)][at(device.stage) - chain.first];
      Nanoseconds& time = is_forward(each.call.function) ? stage.forward
                          : each.call.begins()           ? stage.backward
                                                         : stage.weights;
      time = std::max(time, each.computes + each.waits);
    }
  }
  for (std::vector<StageTimes>& stages : times)
    for (StageTimes& stage : stages) stage.backward += stage.weights;
  return times;
}

// Adds the transfers of stage `from` to a neighbour: [microbatch][boundary].
void add_transfers(const Program& program,
                   const Chain& chain,
                   const CostModel& costs,
                   size_t from,
                   std::vector<std::vector<BoundaryTimes>>& times) {
  const LoweredStage& stage = program.stages[from];
  const auto receives = [&](size_t neighbour, int device) {
    return chain.has(neighbour) && program.stages[neighbour].devices.back() == device;
  };
  CommunicationPrices prices(stage, costs);
  walk(stage, [&](const Call& call, Position, const Post& post) {
    if (!is_forward(call.function) && !is_backward(call.function)) return;
    if (!only_sends(stage.communications[at(post.communication)])) return;
    const int receiver = stage.communications[at(post.communication)].devices.back();
    const bool on = receives(from + 1, receiver);
    if (!on && !(from > 0 && receives(from - 1, receiver))) return;
    const Exchanges& exchanges = prices.exchanges(post.communication, call.microbatch, 0);
    Nanoseconds occupied;
    for (const auto& [link, bytes] : exchanges.bytes_by_link)
      occupied = std::max(occupied, occupancy(costs.topology().links()[at(link)], bytes));
    const size_t behind = from - chain.first;
    BoundaryTimes& boundary = times[at(call.microbatch)][on ? behind : behind - 1];
    (on ? boundary.forward : boundary.backward) += occupied;
    boundary.latency = std::max({boundary.latency, exchanges.estimate - occupied, Nanoseconds{}});
  });
}

// Returns the bytes that a device exchanges with other stages in one micro-batch.
int64_t transferred(const LoweredStage& stage, int device) {
  int64_t bytes = 0;
  for (const Communication& communication : stage.communications)
    for (const auto* values : {&communication.inputs, &communication.outputs})
      for (ValueId value : *values)
        if (communication.lane >= 0)
          bytes += num_bytes(type_of(stage.graph, value), stage.tables[0][at(device)]);
  return bytes;
}

// One more in flight may also be in transit in each lane; one fewer frees at least its saved bytes.
int room_for(const MemoryUse& use,
             int64_t transferred,
             int in_flight_now,
             double memory_bytes,
             int microbatches) {
  int64_t saved = 0;
  for (int64_t each : use.saved) saved = std::max(saved, each);
  if (saved == 0) return microbatches;
  const double left = memory_bytes - static_cast<double>(use.peak);
  const double more =
      std::floor(left / static_cast<double>(left < 0 ? saved : saved + transferred));
  return static_cast<int>(std::clamp<double>(in_flight_now + more, 1, microbatches));
}

}  // namespace

std::vector<int> in_flight(const Program& program) {
  std::vector<int> most;
  for (const LoweredStage& stage : program.stages) {
    most.push_back(0);
    int now = 0;
    for (const Call& call : stage.calls) {
      if (is_forward(call.function) && call.begins()) most.back() = std::max(most.back(), ++now);
      if (is_backward(call.function) && call.begins()) --now;
    }
  }
  return most;
}

ScheduleRequest schedule_request(const Program& program,
                                 int pipeline,
                                 const CostModel& costs,
                                 const Simulation& simulation) {
  const Chain chain = chain_of(program, pipeline);
  MEDLEY_CHECK(chain.count > 1);
  const auto microbatches = static_cast<int>(program.stages[chain.first].tables.size());
  const auto by_stage = stage_times(program, chain, simulation);
  std::vector<std::vector<BoundaryTimes>> by_boundary(at(microbatches),
                                                      std::vector<BoundaryTimes>(chain.count - 1));
  for (size_t s = 0; s < chain.count; ++s)
    add_transfers(program, chain, costs, chain.first + s, by_boundary);
  ScheduleRequest request;
  for (int m = 0; m < microbatches; ++m) {
    request.times.sizes.push_back({by_stage[at(m)], by_boundary[at(m)]});
    request.times.size_of.push_back(m);
  }
  const std::vector<int> now = in_flight(program);
  request.max_in_flight.assign(chain.count, microbatches);
  for (const auto& [stage, device, use] : memory_uses(program)) {
    if (!chain.has(at(stage))) continue;
    const LoweredStage& on = program.stages[at(stage)];
    int& limit = request.max_in_flight[at(stage) - chain.first];
    limit = std::min(limit,
                     room_for(use,
                              transferred(on, position_of(on.devices, device)),
                              now[at(stage)],
                              costs.cluster().kind(device).memory_bytes,
                              microbatches));
  }
  for (size_t s = 0; s < chain.count; ++s)
    request.pools.push_back(
        costs.cluster().devices[at(program.stages[chain.first + s].devices[0])].pool);
  return request;
}

}  // namespace medley
