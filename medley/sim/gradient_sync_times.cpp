#include "medley/sim/gradient_sync_times.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "medley/base/at.h"
#include "medley/sim/prices.h"

namespace medley {
namespace {

// Merges spans that overlap or touch.
std::vector<TimeSpan> joined(std::vector<TimeSpan> spans) {
  std::ranges::sort(spans, {}, &TimeSpan::begin);
  std::vector<TimeSpan> result;
  for (const TimeSpan& each : spans)
    if (result.empty() || result.back().end < each.begin)
      result.push_back(each);
    else
      result.back().end = std::max(result.back().end, each.end);
  return result;
}

// Requires: `spans` are joined.
Nanoseconds overlap(const std::vector<TimeSpan>& spans, const TimeSpan& with) {
  Nanoseconds sum;
  auto each = std::ranges::upper_bound(spans, with.begin, {}, &TimeSpan::end);
  for (; each != spans.end() && each->begin < with.end; ++each)
    sum += std::min(each->end, with.end) - std::max(each->begin, with.begin);
  return sum;
}

class Finder {
 public:
  Finder(const Program& program, const CostModel& costs, const Simulation& simulation)
      : program_(program), costs_(costs), backward_(program.stages.size()) {
    for (const SimulatedDevice& device : simulation.devices) {
      const auto stage = at(device.stage);
      stage_of_[device.device] = stage;
      std::vector<TimeSpan>& backward = backward_[stage];
      backward.insert(backward.end(), device.backward.begin(), device.backward.end());
      for (const auto& [communication, span] : device.syncs) {
        TimeSpan& whole =
            spans_[program.stages[stage].communications[at(communication)].sync.get()];
        whole = {std::max(whole.begin, span.begin), std::max(whole.end, span.end)};
      }
    }
    for (std::vector<TimeSpan>& stage : backward_) {
      stage = joined(std::move(stage));
      all_.insert(all_.end(), stage.begin(), stage.end());
    }
    all_ = joined(std::move(all_));
  }

  std::vector<GradientSyncTimes> all() const {
    std::vector<GradientSyncTimes> result;
    std::set<const GradientSync*> known;
    for (const LoweredStage& stage : program_.stages) {
      CommunicationPrices prices(stage, costs_);
      for (size_t c = 0; c < stage.communications.size(); ++c)
        if (const Communication& communication = stage.communications[c];
            communication.sync && known.insert(communication.sync.get()).second)
          result.push_back(
              times(stage, communication, prices.exchanges(static_cast<int>(c), 0, 0)));
    }
    std::ranges::stable_sort(result, {}, &GradientSyncTimes::begins);
    return result;
  }

 private:
  GradientSyncTimes times(const LoweredStage& stage,
                          const Communication& communication,
                          const Exchanges& exchanges) const {
    GradientSyncTimes sync;
    sync.name = communication.name;
    sync.of = communication.sync->of;
    sync.tensors = static_cast<int64_t>(communication.sync->tensors.size());
    const int64_t element = bytes_per_element(type_of(stage.graph, any_value(communication)).dtype);
    for (const auto& tensor : communication.sync->tensors)
      for (const SyncCell& cell : *tensor) sync.bytes += element * cell.length;
    sync.alone = exchanges.estimate;
    find_link(exchanges, sync);
    std::set<int> stages;
    for (int device : communication.devices) stages.insert(static_cast<int>(stage_of_.at(device)));
    sync.stages.assign(stages.begin(), stages.end());
    const TimeSpan& span = spans_.at(communication.sync.get());
    sync.begins = span.begin;
    sync.ends = span.end;
    sync.overlapped = overlap(all_, span);
    if (!all_.empty()) sync.cool_down = std::max(Nanoseconds{}, all_.back().end - span.begin);
    for (size_t s = 0; s < backward_.size(); ++s)
      if (overlap(backward_[s], span) > Nanoseconds{}) sync.overlaps.push_back(static_cast<int>(s));
    return sync;
  }

  void find_link(const Exchanges& exchanges, GradientSyncTimes& sync) const {
    const std::vector<Link>& links = costs_.topology().links();
    Nanoseconds longest;
    for (const auto& [link, bytes] : exchanges.bytes_by_link) {
      if (links[at(link)].name.ends_with(":out")) sync.traffic += bytes;
      const Nanoseconds time = occupancy(links[at(link)], bytes);
      if (time <= longest) continue;
      longest = time;
      sync.link = link;
    }
  }

  const Program& program_;
  const CostModel& costs_;
  std::map<int, size_t> stage_of_;                 // [device]
  std::map<const GradientSync*, TimeSpan> spans_;  // from the last member's arrival
  std::vector<std::vector<TimeSpan>> backward_;    // [stage]
  std::vector<TimeSpan> all_;                      // over all stages
};

}  // namespace

std::vector<GradientSyncTimes> gradient_sync_times(const Program& program,
                                                   const CostModel& costs,
                                                   const Simulation& simulation) {
  return Finder(program, costs, simulation).all();
}

}  // namespace medley
