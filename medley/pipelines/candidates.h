#pragma once

// From a candidate for a pipeline (which layers each stage has, on how many devices of which pool)
// to a plan and its step: each stage is synthesised as a whole (stage_options.h), micro-batches in
// flight are counted (schedule/h1f1b.h), the plan is lowered and simulated. Knows nothing of where
// candidates come from.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "medley/pipelines/pools.h"
#include "medley/pipelines/stage_options.h"
#include "medley/program/program.h"

namespace medley {

struct PipelineCandidate {
  int64_t microbatches = 1;
  std::vector<StageRange> stages;
  std::vector<StageConfig> configs;  // [stage]
  auto operator<=>(const PipelineCandidate&) const = default;
};

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
  // [layer] what crosses the cut behind it.
  std::vector<CutBytes> cuts(int64_t microbatches) const;
  // Of parameters that the first and the last layer read.
  Bytes shared() const;
  // How long stages exchange gradients of parameters that several of them read, once a step: each
  // sends its part to all others, and what goes from one pool to another shares a link. Nothing if
  // there is none.
  std::optional<Nanoseconds> exchange(const std::vector<StageRange>& ranges) const;
  // All meshes of one size in a pool, and in its sub-pools, are alike.
  StageMesh mesh(const StageRange& range) const;

  // Solves the stages of all on all cores.
  void solve(const std::vector<PipelineCandidate>& candidates);

  // Times a candidate and keeps it, unless a stage cannot be run like this or has no room for a
  // single micro-batch.
  void add(const PipelineCandidate& candidate);
  // The same of all, and again with blocks, then all computed again in stages that have no room for
  // as many micro-batches as hide transfers. Solves them on all cores.
  void add_recomputing(std::vector<PipelineCandidate> candidates);
  struct Timed {
    Nanoseconds time;  // of a step, by the timer
    PipelineCandidate candidate;
  };
  // All that differ, the fastest first; of those that take as long, in the order in which they
  // came.
  const std::vector<Timed>& timed() const { return timed_; }
  // Requires: it is timed.
  size_t slowest_stage(const PipelineCandidate& candidate);

  // Lowers and simulates the candidate and keeps it if it is the fastest so far; of one that does
  // not fit, with fewer in flight, in less memory or computing more again, whichever the timer says
  // is fastest. Of many micro-batches a few are simulated: once the pipeline is full, one is like
  // the next.
  void evaluate(PipelineCandidate candidate) { evaluate(std::move(candidate), std::nullopt); }

  // Considers the fastest timed, with as many times as told and more until one fits, but none that
  // the timer says is slower than the best by the simulator: all that take as long are one time,
  // for the simulator tells them apart. Says before each time which it is, from 0 on.
  void choose(int most, const std::function<void(int)>& starting = {});
  // Considers the best once more, with those of its stages on several nodes decided over nodes and
  // devices at once that are faster so by themselves.
  void join_axes();
  // The fastest that was considered; else why the first one did not fit.
  Outcome best() const;

 private:
  // A parameter that several layers read.
  struct Tied {
    Bytes bytes;
    std::set<int> layers;
  };
  // A candidate as it would run.
  struct Trial {
    PipelinePlan stages;
    std::vector<int> counts;  // in flight
    Plan plan;
    Program program;                  // of the first micro-batches, once it is lowered
    std::optional<Nanoseconds> step;  // once it is simulated
  };
  struct Shortage {
    size_t stage = 0;
    int device = 0;  // of the cluster
    double bytes = 0;
  };
  void find_tied();
  StageQuery query(const PipelineCandidate& candidate, size_t stage) const;
  const std::optional<StageSolution>& solution(const PipelineCandidate& candidate, size_t stage);
  bool recompute_more(PipelineCandidate& candidate, std::string_view how);
  // What a stage needs beyond what its option says, found with so many micro-batches in flight.
  struct ExtraBytes {
    Bytes bytes;
    int in_flight = 0;
  };
  // `extra`: by stage; empty: nothing.
  std::optional<PipelinePlan> stages(const PipelineCandidate& candidate,
                                     const std::vector<ExtraBytes>& extra);
  // Nothing if a stage cannot be run like this, or has no room for a single micro-batch.
  std::optional<PipelinePlan> whole(const PipelineCandidate& candidate,
                                    const std::vector<ExtraBytes>& extra = {});
  std::optional<PipelineCandidate> with_less_memory(const PipelineCandidate& candidate,
                                                    size_t stage,
                                                    const std::vector<ExtraBytes>& extra);
  Plan to_plan(const PipelineCandidate& candidate, const std::vector<int>& in_flight);
  // Nothing where whole() is.
  std::optional<Trial> trial(const PipelineCandidate& candidate,
                             const std::vector<ExtraBytes>& extra);
  // Threads may do so, each its own.
  void lower(Trial& trial) const;
  void simulate(Trial& trial) const;
  // `trial`: of the candidate; nothing: not made yet.
  void evaluate(PipelineCandidate candidate, std::optional<Trial> trial);
  void find_defaults(const PipelineCandidate& candidate);
  std::string name_of_first(int layer) const;
  std::optional<Shortage> find_shortage(const Trial& trial) const;
  std::string explain(const Shortage& shortage, const std::vector<int>& counts) const;

  const Request& request_;
  const std::vector<DevicePool>& pools_;
  StageSynthesis& synthesis_;
  std::vector<PipelinePool> pipeline_pools_;
  std::vector<std::vector<std::optional<LinkCurve>>> links_;
  std::vector<Tied> tied_;
  std::vector<Timed> timed_;
  std::map<StageQuery, bool> defaults_suffice_;
  std::optional<Plan> best_;
  PipelineCandidate best_candidate_;
  Nanoseconds best_step_;
  std::string misfit_;
};

}  // namespace medley
