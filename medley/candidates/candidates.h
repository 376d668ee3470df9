#pragma once

// From a candidate for a plan (of each pipeline, which layers each stage has, on how many devices
// of which pool) to the plan and its step: each stage is synthesised as a whole (stage_options.h),
// micro-batches in flight are counted (schedule/h1f1b.h), the plan is lowered and simulated. Knows
// nothing of where candidates come from.

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "medley/candidates/alike_nodes.h"
#include "medley/candidates/pools.h"
#include "medley/candidates/stage_options.h"
#include "medley/program/program.h"

namespace medley {

struct PipelineCandidate {
  int64_t microbatches = 1;
  std::vector<StageRange> stages;
  std::vector<StageConfig> configs;  // [stage]
  int64_t rows = 0;                  // of a step; 0: all of the request
  auto operator<=>(const PipelineCandidate&) const = default;
};

// Which stages of several pipelines are near each other: those of one pipeline, which send each
// other activations in every micro-batch, or those that hold the same layers, which sum gradients
// once a step.
//
//   nodes of two devices       | . . | . . |
//   kNeighbours                |0/0 0/1|1/0 1/1|
//   kSameLayers                |0/0 1/0|0/1 1/1|
enum class Together : uint8_t { kNeighbours, kSameLayers };

// Pipelines that divide the devices and the rows of a step.
struct PlanCandidate {
  std::vector<PipelineCandidate> pipelines;
  Together together = Together::kNeighbours;
  auto operator<=>(const PlanCandidate&) const = default;
};

// Whether none before it is the same.
template <typename T>
bool is_first_alike(const std::vector<T>& all, size_t number) {
  const auto own = all.begin() + static_cast<std::ptrdiff_t>(number);
  return std::find(all.begin(), own, *own) == own;
}

class CandidateSet {
 public:
  // Requires: all outlive this.
  CandidateSet(const Request& request,
               const std::vector<DevicePool>& pools,
               StageSynthesis& synthesis);

  const std::vector<PipelinePool>& pools() const { return pipeline_pools_; }
  const std::vector<std::vector<std::optional<LinkCurve>>>& links() const { return links_; }
  // Of the larger micro-batches, if they have two sizes.
  int64_t rows(int64_t microbatches) const;
  // [layer] what crosses the cut behind it, with so many rows in a micro-batch.
  std::vector<CutBytes> cuts(int64_t rows) const;
  std::vector<CutBytes> cuts(const PipelineCandidate& pipeline) const {
    return cuts(rows_of_microbatch(pipeline));
  }
  const Layers& layers() const { return synthesis_.layers(); }
  // For how many micro-batches a device of the stage has room, of so many, beside so many bytes. Of
  // one of several pipelines there is none without room for what it sums with them beside one.
  int room(const StageOption& option,
           const StageRange& range,
           int most,
           bool is_alone,
           Bytes beside = {}) const;
  // Of a step by the timer, with stages that take so long. `timings`: of turns_of().
  Nanoseconds time_of(const PlanCandidate& candidate,
                      const std::vector<PipelinePlan>& plans,
                      int timings = 100) const;
  // [layer] what it takes in a step as a stage like that by itself; 0: not known.
  std::vector<Nanoseconds> layer_times(const PipelineCandidate& pipeline, size_t stage);
  // [layer] of its parameters.
  const std::vector<Bytes>& gradients() const { return gradients_; }
  // Of parameters that the first and the last layer read.
  Bytes shared() const;
  // How long the stages of a pipeline exchange gradients of parameters that several of them read,
  // once a step: each sends its part to all others, and what goes from one pool to another shares a
  // link. Nothing if there is none.
  std::optional<Nanoseconds> exchange(const std::vector<StageRange>& ranges) const;
  // Meshes of one size in a pool are interchangeable: returns the first.
  StageMesh mesh(const StageRange& range) const;

  // How long the ports of a node take at least for what its stages exchange with those on others.
  // No plan of the candidate takes less, as the simulator sees it.
  Nanoseconds least_step(const PlanCandidate& candidate) const;
  // Whether in either placement, however the rows are divided among pipelines, ports take as long
  // as what is known.
  bool cannot_win(const PlanCandidate& candidate) const;

  // From now on backward passes are one call: no gradients of weights come later.
  void keep_backward_whole() { is_whole_ = true; }

  // Solves the stages of all on all cores.
  void solve(const std::vector<PlanCandidate>& candidates);
  // Each pipeline as it is when its stages are synthesised as wholes. Nothing if a stage cannot be
  // run like this, or has no room for a single micro-batch.
  std::optional<std::vector<PipelinePlan>> wholes(const PlanCandidate& candidate) {
    return wholes(candidate, {});
  }

  // Where a stage as a whole has no room for a micro-batch, which the sum over its layers had: with
  // a higher price of memory for it, or with more of it computed again, if that has.
  void make_room(PlanCandidate& candidate);
  // Where stages as wholes have room for fewer micro-batches than hide transfers, the same if the
  // timer says that it gains.
  void make_more_room(PlanCandidate& candidate);
  // Times a candidate in both placements, if they differ, and keeps them, unless wholes() has
  // nothing or ports take as long as what is known. Returns the shorter time.
  std::optional<Nanoseconds> add(const PlanCandidate& candidate);
  // The same of all, timed on all cores.
  std::vector<std::optional<Nanoseconds>> add(const std::vector<PlanCandidate>& candidates);
  // As add(), and again with blocks, then all computed again in stages that have no room for
  // as many micro-batches as hide transfers. Solves them on all cores.
  void add_recomputing(std::vector<PlanCandidate> candidates);
  struct Timed {
    Nanoseconds time;  // of a step, by the timer
    PlanCandidate candidate;
  };
  // All that differ, the fastest first; of those that take as long, in the order in which they
  // came.
  const std::vector<Timed>& timed() const { return timed_; }
  // Drops those a stage of which takes longer by the sum over its layers, which is found sooner
  // than the stage as a whole where there are several.
  void drop_slower(std::vector<PlanCandidate>& candidates, Nanoseconds step);
  // Requires: it is one of those of a timed one.
  size_t slowest_stage(const PipelineCandidate& pipeline);

  // Lowers and simulates the candidate and keeps it if it is the fastest so far; of one that does
  // not fit, with fewer in flight, in less memory or computing more again, whichever the timer says
  // is fastest. Of many micro-batches of one pipeline a few are simulated: once it is full, one is
  // like the next.
  void evaluate(PlanCandidate candidate) { evaluate(std::move(candidate), std::nullopt); }

  // Considers the fastest timed, with as many times as told and more until one fits, but none that
  // the timer says is slower than the best by the simulator: all that take as long are one time,
  // for the simulator tells them apart. Then the best in its other placement, too. Says before each
  // time which it is, from 0 on.
  void choose(int most, const std::function<void(int)>& starting = {});
  // Considers the best once more, with those of its stages on several nodes decided over nodes and
  // devices at once that are faster so by themselves.
  void join_axes();
  // The fastest that was considered; else why the first one did not fit.
  Outcome best() const;
  // Of the best, by the simulator. Requires: best() is a plan.
  Nanoseconds best_step() const { return best_step_; }

 private:
  // A parameter that several layers read.
  struct Tied {
    Bytes bytes;
    std::set<int> layers;
  };
  // A candidate as it would run.
  struct Trial {
    std::vector<PipelinePlan> pipelines;
    std::vector<PipelineTurns> turns;  // [pipeline]
    Plan plan;
    Program program;                  // of the first micro-batches, once it is lowered
    std::optional<Nanoseconds> step;  // once it is simulated, with what it costs besides
  };
  struct Shortage {
    size_t pipeline = 0, stage = 0;
    int device = 0;  // of the cluster
    double bytes = 0;
  };
  // What a stage needs beyond what its option says, found with so many micro-batches in flight.
  struct ExtraBytes {
    Bytes bytes;
    int in_flight = 0;
    bool is_whole = false;  // no room for gradients of weights that come later
    double missing = 0;     // bytes
  };
  using Extra = std::vector<std::vector<ExtraBytes>>;  // [pipeline][stage]; empty: nothing
  using PortTimes = std::map<int, double>;             // [link] nanoseconds of a step
  PortTimes port_times(const PipelineCandidate& pipeline,
                       const std::vector<std::vector<int>>& devices) const;
  Nanoseconds least_step_of_any_rows(const PlanCandidate& candidate) const;
  void find_tied();
  bool is_slower_than_known(Nanoseconds step) const {
    return request_.faster_than && step >= *request_.faster_than;
  }
  bool loses_by_ports(const PlanCandidate& placed) const {
    return request_.faster_than && is_slower_than_known(least_step(placed));
  }
  bool is_too_slow(Nanoseconds time) const;
  // Requires: its stages are solved. Threads may do so.
  std::optional<Nanoseconds> time_of(const PlanCandidate& candidate);
  void keep_timed(Timed timed);
  // The same in its other placement; nothing if that is no other one.
  std::optional<PlanCandidate> placed_otherwise(PlanCandidate candidate) const;
  int64_t rows_of(const PipelineCandidate& pipeline) const;
  int64_t rows_of_microbatch(const PipelineCandidate& pipeline) const;
  // [pipeline][stage]
  std::vector<std::vector<std::vector<int>>> devices_of(const PlanCandidate& candidate) const;
  StageQuery query(const PipelineCandidate& pipeline, size_t stage) const;
  const std::optional<StageSolution>& solution(const PipelineCandidate& pipeline, size_t stage);
  bool recompute_more(PlanCandidate& candidate, std::string_view how);
  bool make_room(PipelineCandidate& pipeline, size_t stage, bool is_alone);
  std::optional<PipelinePlan> stages(const PipelineCandidate& pipeline,
                                     const std::vector<std::vector<int>>& devices,
                                     const std::vector<ExtraBytes>& extra,
                                     bool is_alone);
  // Some may have no room. Nothing if a stage cannot be run like this.
  std::optional<std::vector<PipelinePlan>> stages(const PlanCandidate& candidate,
                                                  const Extra& extra);
  std::optional<std::vector<PipelinePlan>> wholes(const PlanCandidate& candidate,
                                                  const Extra& extra);
  Nanoseconds relays_after(const PlanCandidate& candidate,
                           const std::vector<PipelinePlan>& plans) const;
  std::optional<PlanCandidate> with_less_memory(const PlanCandidate& candidate,
                                                size_t pipeline,
                                                size_t stage,
                                                const Extra& extra,
                                                bool as_it_is);
  Pipeline to_pipeline(const PipelineCandidate& candidate,
                       const std::vector<std::vector<int>>& devices,
                       const PipelineTurns& turns);
  Plan to_plan(const PlanCandidate& candidate, const std::vector<PipelineTurns>& turns);
  // Nothing where wholes() is.
  std::optional<Trial> trial(const PlanCandidate& candidate, const Extra& extra);
  // Threads may do so, each its own.
  void lower(Trial& trial) const;
  void simulate(Trial& trial) const;
  void try_next(std::vector<std::optional<Trial>>& trials);
  Nanoseconds simulated_step(const Trial& trial) const;
  // `trial`: of the candidate; nothing: not made yet.
  void evaluate(PlanCandidate candidate, std::optional<Trial> trial);
  // evaluate(), and throws if the candidate cannot be lowered.
  void repair(PlanCandidate candidate, std::optional<Trial> trial);
  void find_defaults(const PipelineCandidate& pipeline);
  std::string name_of_first(int layer) const;
  std::vector<Shortage> find_shortages(const Trial& trial) const;
  std::string explain(const Shortage& shortage, const Trial& trial) const;

  const Request& request_;
  const std::vector<DevicePool>& pools_;
  std::map<int, AlikeNodes> alike_nodes_;  // of pools that are not alike
  StageSynthesis& synthesis_;
  std::vector<PipelinePool> pipeline_pools_;
  std::vector<std::vector<std::optional<LinkCurve>>> links_;
  std::vector<Tied> tied_;
  std::vector<Bytes> gradients_;  // [layer]
  std::vector<Timed> timed_;
  std::map<StageQuery, bool> defaults_suffice_;
  std::optional<Plan> best_;
  PlanCandidate best_candidate_;
  Nanoseconds best_step_;
  std::string misfit_;
  bool is_whole_ = false;  // of backward passes
  bool dropped_ = false;   // some that cannot be faster than what is known
};

}  // namespace medley
