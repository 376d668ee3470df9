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
constexpr size_t kSteps = 3 + kMostPriced;

class Harp {
 public:
  explicit Harp(const Request& request)
      : request_(request),
        pools_(pools_of(request)),
        synthesis_(request, {.per_block = kLayersPerBlock}),
        outlines_(request, pools_, synthesis_) {
    pipeline_.layers = static_cast<int>(synthesis_.layers().layers.size());
    pipeline_.pools = outlines_.pools();
    pipeline_.links = outlines_.links();
    pipeline_.candidates = kOfEachCount;
    for (int64_t count : microbatch_counts(request))
      pipeline_.microbatches.push_back(microbatch_choice(count));
  }

  Outcome run() {
    report(request_, "harp: layers", 1, kSteps);
    solve_layers();
    report(request_, "harp: chains of stages", 2, kSteps);
    std::vector<PipelinePlan> plans;
    std::string why_not;
    for (const MicrobatchChoice& choice : pipeline_.microbatches) {
      PipelineRequest one = pipeline_;
      one.microbatches = {choice};
      const auto found = plan_pipeline(one);
      if (const auto* no = std::get_if<Infeasible>(&found)) {
        why_not = no->reason;
        continue;
      }
      const auto& some = std::get<PipelinePlans>(found).plans;
      plans.insert(plans.end(), some.begin(), some.end());
    }
    if (plans.empty()) return Infeasible{why_not};
    std::ranges::stable_sort(plans, {}, &PipelinePlan::predicted);
    plans.resize(std::min<size_t>(plans.size(), kCandidates));
    std::vector<Outline> all;
    for (const PipelinePlan& plan : plans) {
      Outline outline{plan.microbatches, {}, {}};
      for (const PipelineStage& stage : plan.stages) {
        outline.stages.push_back(stage.range);
        outline.works.push_back(
            StageSynthesis::work_of(stage.option, work(plan.microbatches), stage.in_flight));
      }
      all.push_back(std::move(outline));
    }
    report(request_, "harp: stages as wholes", 3, kSteps);
    outlines_.solve(all);
    for (const Outline& outline : all) outlines_.note(outline);
    move_cuts();
    return outlines_.choose(kMostPriced, [&](int candidate) {
      report(request_, "harp: simulating", static_cast<size_t>(4 + candidate), kSteps);
    });
  }

 private:
  StageWork work(int64_t microbatches) const {
    return {outlines_.rows(microbatches), microbatches, 0, StageStyle::kBest};
  }

  MicrobatchChoice microbatch_choice(int64_t count) {
    return {static_cast<int>(count), outlines_.cuts(count), [this, count](const StageRange& range) {
              return synthesis_.options(range.begin, range.end, outlines_.mesh(range), work(count));
            }};
  }

  // On all meshes that plan_pipeline() will ask for.
  void solve_layers() {
    std::vector<std::pair<StageMesh, StageWork>> uses;
    for (const MicrobatchChoice& choice : pipeline_.microbatches)
      for (int pool = 0; pool < static_cast<int>(pools_.size()); ++pool)
        for (int size : pipeline_.pools[static_cast<size_t>(pool)].sizes)
          uses.emplace_back(outlines_.mesh({0, 0, pool, size}), work(choice.count));
    synthesis_.solve_layers(uses);
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
  PipelineRequest pipeline_;
};

}  // namespace

Outcome harp(const Request& request) {
  if (std::optional<Infeasible> no = rows_meet(request)) return std::move(*no);
  return Harp(request).run();
}

}  // namespace medley
