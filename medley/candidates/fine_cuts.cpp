#include "medley/candidates/fine_cuts.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/synthesis/tuning.h"

namespace medley {
namespace {

constexpr LayerOptions kFine{.per_block = kLayersOfChains.per_block, .parts = kCutParts};

template <typename Quantity>
void scale(Quantity& quantity, double factor) {
  quantity = {static_cast<int64_t>(static_cast<double>(quantity.value) * factor)};
}

// Layers and their parts.
struct Parts {
  Parts(CandidateTrials& whole, CandidateTrials& finer) : layers(whole), parts(finer) {
    const std::vector<Layer>&all = whole.places().layers, &own = finer.places().layers;
    std::vector<double> sums(all.size());
    int layer = -1;
    for (const Layer& part : own) {
      if (at(layer + 1) < all.size() && part.begin == all[at(layer + 1)].begin) ++layer;
      layer_of.push_back(layer);
      shares.push_back(1 + part.flops + part.backward_flops);
      sums[at(layer)] += shares.back();
    }
    for (size_t p = 0; p < own.size(); ++p) shares[p] /= sums[at(layer_of[p])];
  }
  int part_of(int layer) const {
    return static_cast<int>(std::ranges::lower_bound(layer_of, layer) - layer_of.begin());
  }

  CandidateTrials &layers, &parts;
  std::vector<int> layer_of;   // [part]
  std::vector<double> shares;  // [part] of its layer's flops
};

// A pipeline with other cuts; times of its stages and cuts are scaled from the original ones.
class OtherCuts {
 public:
  OtherCuts(const PipelineCandidate& pipeline,
            const PipelinePlan& plan,
            bool is_alone,
            const Parts& parts)
      : pipeline_(pipeline),
        plan_(plan),
        is_alone_(is_alone),
        parts_(parts),
        cuts_(parts.parts.places().cuts(pipeline)) {
    for (size_t s = 0; s < pipeline.stages.size(); ++s) {
      const std::vector<Nanoseconds> times = parts.layers.layer_times(pipeline, s);
      std::vector<double>& sums = sums_.emplace_back(1, 0.0);
      for (size_t p = 0; p < parts.shares.size(); ++p)
        sums.push_back(sums.back() +
                       parts.shares[p] * static_cast<double>(times[at(parts.layer_of[p])].value));
    }
  }

  PipelinePlan as(const PipelineCandidate& moved) const {
    PipelinePlan plan = plan_;
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      PipelineStage& stage = plan.stages[s];
      const StageRange &now = pipeline_.stages[s], &then = moved.stages[s];
      if (now == then) continue;
      stage.range = then;
      const double factor = time(s, then) / std::max(1.0, time(s, now));
      StageOption& option = stage.option;
      for (Nanoseconds* each : {&option.forward, &option.backward, &option.update, &option.weights})
        scale(*each, factor);
      for (Bytes* each : {&option.persistent, &option.saved}) scale(*each, factor);
      stage.room = parts_.parts.places().room(option, then, plan.microbatches, is_alone_);
      if (s == 0) continue;
      const CutBytes &before = cuts_[at(now.begin - 1)], &bytes = cuts_[at(then.begin - 1)];
      BoundaryTimes& times = plan.boundaries[s - 1];
      scale(times.forward, bytes.up / std::max(Bytes{1}, before.up));
      scale(times.backward, bytes.down / std::max(Bytes{1}, before.down));
    }
    return plan;
  }

 private:
  double time(size_t stage, const StageRange& range) const {
    return sums_[stage][at(range.end)] - sums_[stage][at(range.begin)];
  }

  const PipelineCandidate& pipeline_;
  const PipelinePlan& plan_;
  const bool is_alone_;
  const Parts& parts_;
  const std::vector<CutBytes> cuts_;       // [part] bytes over the cut after it
  std::vector<std::vector<double>> sums_;  // [stage][part] of times before it
};

// Moves cuts [first, last] by `parts`. Returns nullopt if a stage becomes empty.
std::optional<PipelineCandidate> shifted(PipelineCandidate pipeline,
                                         size_t first,
                                         size_t last,
                                         int parts) {
  for (size_t cut = first; cut <= last; ++cut) {
    pipeline.stages[cut - 1].end += parts;
    pipeline.stages[cut].begin += parts;
  }
  for (const StageRange& range : pipeline.stages)
    if (range.begin >= range.end) return std::nullopt;
  return pipeline;
}

// A start with cuts between parts of layers.
struct Start {
  PlanCandidate candidate;
  std::vector<PipelinePlan> stages;  // as wholes
  Nanoseconds time;                  // by the timer
};

Start in_parts(Start start, const Parts& parts) {
  for (size_t p = 0; p < start.stages.size(); ++p)
    for (size_t s = 0; s < start.stages[p].stages.size(); ++s) {
      StageRange& range = start.candidate.pipelines[p].stages[s];
      range.begin = parts.part_of(range.begin);
      range.end = parts.part_of(range.end);
      start.stages[p].stages[s].range = range;
    }
  return start;
}

// Returns a lower bound of a pipeline's time. A stage waits for its first micro-batch and does all;
// the last one then goes back, possibly before the stage's deferred weight gradients.
Nanoseconds takes_at_least(const PipelinePlan& plan) {
  Nanoseconds most, forward, back;
  for (const PipelineStage& stage : plan.stages) {
    const StageOption& option = stage.option;
    const Nanoseconds all = (option.forward + option.backward) * plan.microbatches;
    most = std::max(most, forward + all + (option.weights > Nanoseconds{} ? Nanoseconds{} : back));
    forward += option.forward;
    back += option.backward - option.weights;
  }
  return most + after_schedule(plan);
}

struct Moved {
  Nanoseconds time;  // estimate
  PlanCandidate candidate;
  auto operator<=>(const Moved&) const = default;
};

// Moves cuts one by one, or two neighbours together, while that is faster. Equal pipelines keep
// equal cuts.
Moved moved(const Start& start, const Parts& parts) {
  const Nanoseconds before = parts.parts.time_of(start.candidate, start.stages, 0);
  Moved best{before, start.candidate};
  std::vector<PipelinePlan> known = start.stages;
  for (size_t p = 0; p < start.stages.size(); ++p) {
    if (!is_first_identical(start.stages, p)) continue;
    const bool is_alone = start.stages.size() == 1;
    const OtherCuts cuts(start.candidate.pipelines[p], start.stages[p], is_alone, parts);
    // Their rows may differ.
    const auto with = [&](const PipelineCandidate& one, const PipelinePlan& plan) {
      std::pair<PlanCandidate, std::vector<PipelinePlan>> all{best.candidate, known};
      for (size_t q = p; q < known.size(); ++q) {
        if (start.stages[q] != start.stages[p]) continue;
        all.first.pipelines[q].stages = one.stages;
        all.second[q] = plan;
      }
      return all;
    };
    for (;;) {
      const PipelineCandidate now = best.candidate.pipelines[p];
      std::vector<PipelineCandidate> all;
      for (size_t first = 1; first < now.stages.size(); ++first)
        for (size_t last = first; last < std::min(now.stages.size(), first + 2); ++last)
          for (int by = -kCutParts; by <= kCutParts; ++by)
            if (auto one = by ? shifted(now, first, last, by) : std::nullopt)
              all.push_back(std::move(*one));
      std::vector<Nanoseconds> times(all.size(), kLongest);
      for_each_in_parallel(all.size(), [&](size_t i) {
        const PipelinePlan plan = cuts.as(all[i]);
        if (takes_at_least(plan) >= best.time ||
            std::ranges::min(plan.stages, {}, &PipelineStage::room).room == 0)
          return;
        const auto [candidate, plans] = with(all[i], plan);
        times[i] = parts.parts.time_of(candidate, plans, 0);
      });
      const auto least = std::ranges::min_element(times);
      if (least == times.end() || *least >= best.time) break;
      const PipelineCandidate& next = all[static_cast<size_t>(least - times.begin())];
      std::tie(best.candidate, known) = with(next, cuts.as(next));
      best.time = *least;
    }
  }
  scale(best.time, start.time / before);
  return best;
}

}  // namespace

std::optional<FinerPlan> with_finer_cuts(const Request& request,
                                         const std::vector<DevicePool>& pools,
                                         CandidateSet& candidates) {
  if (is_over(request) || candidates.timed().empty() ||
      candidates.best_step() / candidates.timed().front().time > kTimerOff)
    return std::nullopt;
  Request faster = request;
  faster.faster_than = candidates.best_step();
  const std::shared_ptr<StageSynthesis> synthesis = stages_of(request, kFine);
  CandidateSet finer(faster, pools, *synthesis);
  const Parts parts(candidates.trials(), finer.trials());
  std::vector<Start> starts;
  for (const auto& [time, candidate] : candidates.timed()) {
    if (starts.size() == kClimbers) break;
    if (auto stages = candidates.trials().exact_stages(candidate))
      starts.push_back(in_parts({candidate, std::move(*stages), time}, parts));
  }
  std::set<PlanCandidate> met;
  Nanoseconds best = candidates.timed().front().time;
  while (!starts.empty()) {
    std::vector<Moved> found;
    for (const Start& start : starts) {
      Moved next = moved(start, parts);
      if (next.time < best && met.insert(next.candidate).second) found.push_back(std::move(next));
    }
    std::ranges::sort(found);
    std::vector<PlanCandidate> all;
    for (Moved& each : found) all.push_back(std::move(each.candidate));
    const std::vector<std::optional<Nanoseconds>> times = finer.add(all);
    starts.clear();
    for (size_t i = 0; i < all.size(); ++i) {
      if (!times[i]) continue;
      best = std::min(best, *times[i]);
      starts.push_back({all[i], *finer.trials().exact_stages(all[i]), *times[i]});
    }
  }
  finer.choose(static_cast<int>(kClimbers / 2));
  const Outcome found = finer.best();
  const auto* plan = std::get_if<Plan>(&found);
  if (!plan || finer.best_step() >= candidates.best_step()) return std::nullopt;
  return FinerPlan{*plan, finer.best_step()};
}

Outcome best_with_finer_cuts(const Request& request,
                             const std::vector<DevicePool>& pools,
                             CandidateSet& candidates,
                             Nanoseconds least) {
  Outcome found = candidates.best();
  auto* plan = std::get_if<Plan>(&found);
  if (!plan) return found;
  Nanoseconds step = candidates.best_step();
  std::optional<FinerPlan> finer;
  why_left_out(request, [&] { finer = with_finer_cuts(request, pools, candidates); });
  if (finer) {
    *plan = std::move(finer->plan);
    step = finer->step;
  }
  plan->bound = StepBound{step.value, std::min(step, least).value};
  return found;
}

}  // namespace medley
