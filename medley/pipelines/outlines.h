#pragma once

// From the outline of a pipeline, which layers each stage has on how many devices of which pool, to
// a plan and its step: each stage is synthesised as a whole (stage_options.h), micro-batches in
// flight are counted (schedule/h1f1b.h), the plan is lowered and simulated. Knows nothing of where
// outlines come from.

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

struct Outline {
  int64_t microbatches = 1;
  std::vector<StageRange> stages;
  std::vector<StageWork> works;  // [stage]
  auto operator<=>(const Outline&) const = default;
};

class Outlines {
 public:
  // Requires: all outlive this.
  Outlines(const Request& request, const std::vector<DevicePool>& pools, StageSynthesis& synthesis);

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
  // All meshes of one size in a pool, and in its pieces, are alike.
  StageMesh mesh(const StageRange& range) const;

  // Solves the stages of all on all cores.
  void solve(const std::vector<Outline>& outlines);

  // Times an outline and keeps it, unless a stage cannot be run like this or has no room for a
  // single micro-batch.
  void note(const Outline& outline);
  // The same of all, and again with blocks, then all computed again in stages that have no room for
  // as many micro-batches as hide transfers. Solves them on all cores.
  void note_recomputing(std::vector<Outline> outlines);
  struct Timed {
    Nanoseconds time;  // of a step, by the timer
    Outline outline;
  };
  // All that differ, the fastest first; of those that take as long, in the order in which they
  // came.
  const std::vector<Timed>& noted() const { return noted_; }
  // Requires: it is noted.
  size_t slowest_stage(const Outline& outline);

  // Lowers and simulates the outline and keeps it if it is the fastest so far; of one that does not
  // fit, with fewer in flight, in less memory or computing more again, whichever the timer says is
  // fastest. Of many micro-batches a few are simulated: once the pipeline is full, one is like the
  // next. Returns whether it fits as it is; false of one that is slower than another that fits.
  bool consider(Outline outline) { return consider(std::move(outline), std::nullopt); }

  // Considers the fastest noted, with as many times as told and more until one fits, but none that
  // the timer says is clearly slower than the first that fits: all that take as long are one time,
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
  // An outline as it would run.
  struct Trial {
    PipelinePlan stages;
    std::vector<int> counts;  // in flight
    Plan plan;
    Program program;                  // of the first micro-batches, once it is lowered
    std::optional<Nanoseconds> step;  // once it is simulated
  };
  struct Lack {
    size_t stage = 0;
    int device = 0;  // of the cluster
    double bytes = 0;
  };
  void find_tied();
  StageTask task(const Outline& outline, size_t stage) const;
  const std::optional<StageSolution>& solution(const Outline& outline, size_t stage);
  bool recompute_more(Outline& outline, std::string_view how);
  // What a stage needs beyond what its option says, found with so many micro-batches in flight.
  struct Unseen {
    Bytes bytes;
    int in_flight = 0;
  };
  // `unseen`: by stage; empty: nothing.
  std::optional<PipelinePlan> stages(const Outline& outline, const std::vector<Unseen>& unseen);
  // Nothing if a stage cannot be run like this, or has no room for a single micro-batch.
  std::optional<PipelinePlan> whole(const Outline& outline, const std::vector<Unseen>& unseen = {});
  std::optional<Outline> eased(const Outline& outline,
                               size_t stage,
                               const std::vector<Unseen>& unseen);
  Plan to_plan(const Outline& outline, const std::vector<int>& in_flight);
  // Nothing where whole() is.
  std::optional<Trial> trial(const Outline& outline, const std::vector<Unseen>& unseen);
  // Threads may do so, each its own.
  void lower(Trial& trial) const;
  void simulate(Trial& trial) const;
  // `trial`: of the outline; nothing: not made yet.
  bool consider(Outline outline, std::optional<Trial> trial);
  void find_unsaid(const Outline& outline);
  std::string name_of_first(int layer) const;
  std::optional<Lack> find_lack(const Trial& trial) const;
  std::string explain(const Lack& lack, const std::vector<int>& counts) const;

  const Request& request_;
  const std::vector<DevicePool>& pools_;
  StageSynthesis& synthesis_;
  std::vector<PipelinePool> pipeline_pools_;
  std::vector<std::vector<std::optional<LinkCurve>>> links_;
  std::vector<Tied> tied_;
  std::vector<Timed> noted_;
  std::map<StageTask, bool> unsaid_;
  std::optional<Plan> best_;
  Outline best_outline_;
  Nanoseconds best_step_;
  std::string misfit_;
};

}  // namespace medley
