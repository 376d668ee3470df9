#include "medley/testing/sample_pipelines.h"

#include <random>

#include "medley/base/at.h"

namespace medley {
namespace {

// Standard distributions differ between libraries, the engine does not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  // Returns 0 to sides - 1.
  int operator()(int sides) { return static_cast<int>(engine_() % static_cast<uint64_t>(sides)); }

 private:
  std::mt19937_64 engine_;
};

MicrobatchTimes random_times(Dice& dice, int stages) {
  const bool equal = dice(2) == 0, with_latency = dice(3) == 0;
  const int stage_time = 1 + dice(30), transfer = 1 + dice(4 * stage_time);
  MicrobatchTimes times;
  for (int i = 0; i < stages; ++i) {
    const int time = equal ? stage_time : dice(2 * stage_time);
    times.stages.push_back({{time}, {equal ? 2 * time : dice(4 * stage_time)}});
    if (i + 1 == stages) break;
    const int there = dice(transfer), back = dice(2) ? there : dice(transfer);
    times.boundaries.push_back({{there}, {back}, {with_latency ? dice(transfer) : 0}});
  }
  return times;
}

}  // namespace

ScheduleRequest random_request(uint64_t seed, int max_stages, int max_microbatches) {
  Dice dice(seed);
  const int stages = 1 + dice(max_stages), microbatches = 1 + dice(max_microbatches);
  ScheduleRequest request;
  const int sizes = 1 + dice(2);
  for (int i = 0; i < sizes; ++i) request.times.sizes.push_back(random_times(dice, stages));
  for (int m = 0; m < microbatches; ++m) request.times.size_of.push_back(dice(sizes));
  const bool limited = dice(2) == 0, pooled = dice(2) == 0;
  for (int i = 0; i < stages; ++i) {
    if (limited) request.max_in_flight.push_back(1 + dice(2 * stages));
    if (pooled) request.pools.push_back(i == 0 ? 0 : request.pools.back() + dice(2));
  }
  return request;
}

PipelineOrder random_order(uint64_t seed, int stages, int microbatches) {
  Dice dice(seed);
  const auto last = at(stages - 1);
  PipelineOrder order(last + 1);
  // [microbatch] completed calls of its round trip: forward on all stages, then backward on all.
  std::vector<size_t> done(at(microbatches));
  for (int left = 2 * stages * microbatches; left > 0;) {
    const int m = dice(microbatches);
    const size_t step = done[at(m)];
    if (step == 2 * (last + 1)) continue;
    if (step <= last)
      order[step].push_back(forward(m));
    else
      order[2 * last + 1 - step].push_back(backward(m));
    ++done[at(m)];
    --left;
  }
  return order;
}

std::vector<std::vector<int>> all_counts(const std::vector<int>& limits) {
  std::vector<std::vector<int>> all = {{}};
  for (const int limit : limits) {
    std::vector<std::vector<int>> longer;
    for (const std::vector<int>& counts : all)
      for (int last = 1; last <= limit && (counts.empty() || last <= counts.back()); ++last) {
        longer.push_back(counts);
        longer.back().push_back(last);
      }
    all = std::move(longer);
  }
  return all;
}

}  // namespace medley
