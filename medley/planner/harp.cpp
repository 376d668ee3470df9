#include "medley/planner/harp.h"

#include <algorithm>

#include "medley/planner/data_parallel.h"
#include "medley/planner/outlines.h"

namespace medley {
namespace {

constexpr int kLayersPerBlock = 2;
constexpr int kOfEachCount = 2;    // chains for each number of micro-batches, and
constexpr size_t kCandidates = 5;  // of all those that are synthesised as wholes and timed
constexpr int kMostPriced = 3;     // of them, lowered and simulated
constexpr int kMostMoves = 16;
// In percent of the fastest chain known. Whole stages are not that much faster than their layers: a
// slower chain is no candidate, and stages of slower ones are not made to need less memory.
constexpr int64_t kSlower = 110;
constexpr size_t kSteps = 2 + kMostPriced;

class Harp {
 public:
  explicit Harp(const Request& request)
      : request_(request),
        pools_(pools_of(request)),
        synthesis_(request, {.per_block = kLayersPerBlock}),
        outlines_(request, pools_, synthesis_),
        counts_(microbatch_counts(request)) {
    pipeline_.layers = static_cast<int>(synthesis_.layers().layers.size());
    pipeline_.pools = outlines_.pools();
    pipeline_.links = outlines_.links();
    pipeline_.candidates = kOfEachCount;
    pipeline_.explain = false;
  }

  Outcome run() {
    report(request_, "harp: chains of stages", 1, kSteps);
    find_chains();
    if (plans_.empty()) return why_none();
    std::ranges::stable_sort(plans_, {}, &PipelinePlan::predicted);
    plans_.resize(std::min<size_t>(plans_.size(), kCandidates));
    std::erase_if(plans_, [&](const PipelinePlan& plan) {
      return plan.predicted.value > fastest_->value * kSlower / 100;
    });
    std::vector<Outline> all;
    for (const PipelinePlan& plan : plans_) {
      Outline outline{plan.microbatches, {}, {}};
      for (const PipelineStage& stage : plan.stages) {
        outline.stages.push_back(stage.range);
        outline.works.push_back(
            StageSynthesis::work_of(stage.option, work(plan.microbatches), stage.in_flight));
      }
      all.push_back(std::move(outline));
    }
    report(request_, "harp: stages as wholes", 2, kSteps);
    outlines_.solve(all);
    for (const Outline& outline : all) outlines_.note(outline);
    move_cuts();
    return outlines_.choose(kMostPriced, [&](int candidate) {
      report(request_, "harp: simulating", static_cast<size_t>(3 + candidate), kSteps);
    });
  }

 private:
  StageWork work(int64_t microbatches) const {
    return {outlines_.rows(microbatches), microbatches, 0, StageStyle::kBest};
  }

  // A step takes less with more micro-batches, until what each of them costs outweighs what stages
  // wait: from a count on which most likely is many, up and then down while it helps.
  void find_chains() {
    const size_t start = counts_.size() * 2 / 3;
    for (size_t i = start; i < counts_.size() && find_chains(counts_[i]); ++i) {
    }
    for (size_t i = start; i > 0 && find_chains(counts_[i - 1]); --i) {
    }
  }

  // Returns whether it found a better one, or none is known.
  bool find_chains(int64_t count) {
    // First with what keeps everything at no price: what is slower than that need not be looked at.
    if (!fastest_)
      if (const auto first = chains(count, {}); !first.empty()) fastest_ = first.front().predicted;
    const std::vector<PipelinePlan> some =
        chains(count, fastest_ ? Nanoseconds{fastest_->value * kSlower / 100 / count} : kLongest);
    const bool had = !plans_.empty();
    const Nanoseconds before = had ? *fastest_ : kLongest;
    if (some.empty()) return !had;
    plans_.insert(plans_.end(), some.begin(), some.end());
    fastest_ = std::min(fastest_.value_or(kLongest), some.front().predicted);
    return !had || some.front().predicted < before;
  }

  // No stage is looked at closer that takes longer than `longest` for a micro-batch.
  std::vector<PipelinePlan> chains(int64_t count, Nanoseconds longest) {
    std::vector<std::pair<StageMesh, StageWork>> uses;
    for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool)
      for (int size : pipeline_.pools[static_cast<size_t>(pool)].sizes)
        uses.emplace_back(outlines_.mesh({0, 0, pool, size}), work(count));
    synthesis_.solve_layers(uses, longest);
    PipelineRequest request = pipeline_;
    request.microbatches = {choice(count, longest)};
    auto found = plan_pipeline(request);
    if (std::holds_alternative<Infeasible>(found)) return {};
    return std::move(std::get<PipelinePlans>(found).plans);
  }

  MicrobatchChoice choice(int64_t count, Nanoseconds longest) {
    return {static_cast<int>(count),
            outlines_.cuts(count),
            [this, count, longest](const StageRange& range) {
              return synthesis_.options(
                  range.begin, range.end, outlines_.mesh(range), work(count), longest);
            }};
  }

  Infeasible why_none() {
    PipelineRequest request = pipeline_;
    request.explain = true;
    for (int64_t count : counts_) request.microbatches.push_back(choice(count, kLongest));
    return std::get<Infeasible>(plan_pipeline(request));
  }

  // Moves a cut beside the slowest stage of the fastest outline, so that it has a layer less, while
  // the timer sees a gain.
  void move_cuts() {
    const std::map<Nanoseconds, Outline>& timed = outlines_.noted();
    for (int moves = 0; moves < kMostMoves && !timed.empty(); ++moves) {
      const auto [before, from] = *timed.begin();
      const size_t slowest = outlines_.slowest_stage(from);
      const StageRange& range = from.stages[slowest];
      if (range.end - range.begin < 2) return;
      std::vector<Outline> moved;
      if (slowest > 0) {
        Outline to = from;
        ++to.stages[slowest].begin;
        ++to.stages[slowest - 1].end;
        moved.push_back(std::move(to));
      }
      if (slowest + 1 < from.stages.size()) {
        Outline to = from;
        --to.stages[slowest].end;
        --to.stages[slowest + 1].begin;
        moved.push_back(std::move(to));
      }
      outlines_.solve(moved);
      for (const Outline& to : moved) outlines_.note(to);
      if (timed.begin()->first == before) return;
    }
  }

  const Request& request_;
  const std::vector<DevicePool> pools_;
  StageSynthesis synthesis_;
  Outlines outlines_;
  const std::vector<int64_t> counts_;  // of micro-batches
  PipelineRequest pipeline_;           // but for these
  std::vector<PipelinePlan> plans_;
  std::optional<Nanoseconds> fastest_;  // predicted
};

}  // namespace

Outcome harp(const Request& request) {
  if (std::optional<Infeasible> no = rows_meet(request)) return std::move(*no);
  return Harp(request).run();
}

}  // namespace medley
