#include "medley/lower/complete_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/parallel.h"
#include "medley/graph/text.h"
#include "medley/lower/connect.h"
#include "medley/ops/rule.h"
#include "medley/plan/owners.h"
#include "medley/prepare/recompute.h"
#include "medley/sharding/coupling.h"

namespace medley {
namespace {

// Replaces ops by their expansions; ids of values stay, names carry over.
Prepared expand_ops(const Prepared& prepared, const std::vector<OpId>& ids) {
  Prepared result = prepared;
  const std::set<OpId> chosen(ids.begin(), ids.end());
  result.graph.ops.clear();
  result.names.clear();
  result.roles.clear();
  std::vector<ValueId> replaced(prepared.graph.values.size(), kNone);
  for (size_t i = 0; i < prepared.graph.ops.size(); ++i) {
    Op op = prepared.graph.ops[i];
    for_each_operand(op, [&](ValueId& value) {
      if (replaced[at(value)] != kNone) value = replaced[at(value)];
    });
    if (!chosen.contains(static_cast<OpId>(i))) {
      result.graph.ops.push_back(std::move(op));
    } else {
      const size_t first = result.graph.ops.size();
      const std::vector<ValueId> fresh = expand(result.graph, op);
      replaced.resize(result.graph.values.size(), kNone);
      for (size_t r = 0; r < fresh.size(); ++r)
        if (op.results[r] != kNone) replaced[at(op.results[r])] = fresh[r];
      for (size_t k = first; k < result.graph.ops.size(); ++k) {
        result.graph.ops[k].phase = op.phase;
        result.graph.ops[k].module = op.module;
        result.graph.ops[k].source = op.source;
      }
    }
    result.names.resize(result.graph.ops.size(), prepared.names[i]);
    result.roles.resize(result.graph.ops.size(), prepared.roles[i]);
  }
  for (Output& output : result.graph.outputs)
    if (replaced[at(output.value)] != kNone) output.value = replaced[at(output.value)];
  for (size_t i = 0; i < result.graph.ops.size(); ++i)
    for (size_t r = 0; r < result.graph.ops[i].results.size(); ++r)
      if (const ValueId value = result.graph.ops[i].results[r]; value != kNone) {
        result.graph.values[at(value)].producer = static_cast<OpId>(i);
        result.graph.values[at(value)].result = static_cast<int32_t>(r);
      }
  return result;
}

// Returns factors; recomputed values have their original ones.
Factors factorize(const Prepared& prepared, const KnownFactors& known) {
  const std::vector<OpId> of = originals(prepared);
  std::vector<std::pair<ValueId, ValueId>> equal;
  for (size_t i = 0; i < of.size(); ++i) {
    if (of[i] == kNone) continue;
    const std::vector<ValueId>& first = prepared.graph.ops[at(of[i])].results;
    for (size_t r = 0; r < first.size(); ++r)
      if (first[r] != kNone) equal.emplace_back(first[r], prepared.graph.ops[i].results[r]);
  }
  return factorize(prepared.graph, equal, known);
}

Completed undecided(Prepared prepared, const KnownFactors& known = {}) {
  auto factors = std::make_shared<const Factors>(factorize(prepared, known));
  return {std::make_shared<const Prepared>(std::move(prepared)), std::move(factors), {}, {}};
}

using Blocks = std::optional<std::vector<size_t>>;

// Returns [stage] the blocks that the stages of another size recompute; absent if `planned` is
// empty.
std::vector<Blocks> blocks_of(const std::vector<Completed>& planned, size_t stages) {
  std::vector<Blocks> blocks(stages);
  for (size_t s = 0; s < planned.size(); ++s) blocks[s] = planned[s].prepared->blocks;
  return blocks;
}

// Returns the one stage of a plan, with the whole graph.
Completed only_stage(const GraphAnalysis& analysis,
                     const Pipeline& pipeline,
                     const Blocks& blocks) {
  const std::string& how = pipeline.stages[0].recompute;
  if (how == Stage().recompute) return {analysis.prepared, analysis.factors, {}, {}};
  return undecided(prepare(analysis.graph,
                           analysis.optimizer,
                           {.names = stable_names(analysis.graph),
                            .recompute = how,
                            .in_flight = peak_in_flight(order_of(pipeline))[0],
                            .blocks = blocks}));
}

// Returns a pipeline's updates of parameters that owners divide.
UpdatedParameters updated_by(const Plan& plan, size_t pipeline, const GraphAnalysis& analysis) {
  const Graph& graph = analysis.graph;
  const Optimizer& optimizer = analysis.optimizer;
  UpdatedParameters updated;
  const Owners owners(plan);
  for (const Output& output : graph.outputs) {
    if (output.kind != OutputKind::kGradient) continue;
    const auto division = owners.division(output.name);
    if (!division) continue;
    int64_t elements = 1;
    // Undivided updates stay whole.
    if (!optimizer.updates() ||
        update_op_of(optimizer.rule_for(output.name)).unit == UpdateUnit::kElement)
      for (const Size& size : type_of(graph, output.value).shape) elements *= evaluate(size, {});
    (division->updates(pipeline, elements) ? updated.shares : updated.elsewhere)
        .insert(output.name);
  }
  return updated;
}

// Replaces composites that are to be cut; their replacements are undecided.
Completed expand(const Completed& completed, const std::vector<OpId>& ids) {
  Prepared expanded = expand_ops(*completed.prepared, ids);
  const KnownFactors known =
      known_inputs(completed.prepared->graph, *completed.factors, expanded.graph);
  Completed result = undecided(std::move(expanded), known);
  result.expanded = completed.expanded;
  result.expanded.push_back(ids);
  return result;
}

bool has_one_stage(const Plan& plan) {
  return plan.pipelines.size() == 1 && only_pipeline(plan).stages.size() == 1;
}

// Returns the prepared stages of a pipeline. `blocks`: one entry for each stage.
std::vector<Completed> split(PreparedStages& prepared,
                             const Plan& plan,
                             size_t number,
                             std::span<const Blocks> blocks) {
  const Pipeline& pipeline = plan.pipelines[number];
  const std::vector<int> counts = peak_in_flight(order_of(pipeline));
  const Partition parts =
      partition(prepared.analysis().graph,
                prepared.positions(),
                cuts_of(pipeline, number, prepared.positions(), prepared.names()),
                prepared.names());
  const Duties duties{number == 0, updated_by(plan, number, prepared.analysis())};
  std::vector<Completed> stages(pipeline.stages.size());
  for_each_in_parallel(stages.size(), [&](size_t s) {
    stages[s] = prepared.stage(
        parts, static_cast<int>(s), pipeline.stages[s].recompute, counts[s], duties, blocks[s]);
  });
  return stages;
}

// Returns the prepared stages of all pipelines, in order.
std::vector<Completed> split(PreparedStages& prepared,
                             const Plan& plan,
                             const std::vector<Completed>& planned = {}) {
  size_t count = 0;
  for (const Pipeline& pipeline : plan.pipelines) count += pipeline.stages.size();
  const std::vector<Blocks> blocks = blocks_of(planned, count);
  std::vector<Completed> stages;
  for (size_t p = 0; p < plan.pipelines.size(); ++p)
    for (Completed& stage : split(prepared, plan, p, std::span(blocks).subspan(stages.size())))
      stages.push_back(std::move(stage));
  return stages;
}

}  // namespace

std::vector<int32_t> cuts_of(const Pipeline& pipeline,
                             size_t number,
                             const Positions& positions,
                             const std::vector<std::string>& names) {
  std::vector<int32_t> cuts;
  for (size_t s = 1; s < pipeline.stages.size(); ++s) {
    const std::string& first = pipeline.stages[s].first;
    const auto op = static_cast<OpId>(std::find(names.begin(), names.end(), first) - names.begin());
    const auto next = std::lower_bound(positions.sequence.begin(), positions.sequence.end(), op);
    const auto cut = static_cast<int32_t>(next - positions.sequence.begin());
    if (next == positions.sequence.end() || cut <= (cuts.empty() ? 0 : cuts.back()))
      throw Error(Blame::kCaller,
                  fmt::format("plan: pipelines[{}].stages[{}].first: found \"{}\", expected an op "
                              "such that each stage has one that others do not have",
                              number,
                              s,
                              first));
    cuts.push_back(cut);
  }
  return cuts;
}

GraphAnalysis analyse(const Graph& graph, const Optimizer& optimizer) {
  GraphAnalysis analysis{graph, optimizer, {}, {}, {}, {}};
  for_each_in_parallel(2, [&](size_t half) {
    if (half == 0) {
      Completed whole = undecided(prepare(graph, optimizer));
      analysis.prepared = std::move(whole.prepared);
      analysis.factors = std::move(whole.factors);
    } else {
      analysis.coupling = row_coupling(graph, factorize(graph));
      analysis.graph_hash = hash(graph);
    }
  });
  return analysis;
}

PreparedStages::PreparedStages(const GraphAnalysis& analysis)
    : analysis_(analysis),
      names_(stable_names(analysis.graph)),
      positions_(place(analysis.graph)) {}

Completed PreparedStages::stage(const Partition& parts,
                                int stage,
                                const std::string& recompute,
                                int in_flight,
                                const Duties& duties,
                                const Blocks& blocks) {
  const auto at = static_cast<size_t>(stage);
  Key key{stage > 0 ? parts.cuts[at - 1] : 0,
          at < parts.cuts.size() ? parts.cuts[at] : kNone,
          recompute,
          recompute == kRecompute[2] ? in_flight : 1,  // only its blocks depend on the count
          duties,
          blocks,
          {},
          {}};
  for (const Tied& tied : parts.tied) {
    if (!std::ranges::count(tied.holders, stage)) continue;
    if (!std::ranges::count(tied.partial, stage)) key.received.insert(tied.parameter);
    if (tied.holders[0] == stage) continue;
    key.counted_elsewhere.insert(tied.parameter);
    if (key.duties.updated.shares.erase(tied.parameter) > 0)
      key.duties.updated.elsewhere.insert(tied.parameter);
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
  }
  Completed fresh = prepare_stage(parts, key, stage);
  const std::lock_guard lock(mutex_);
  return known_.try_emplace(std::move(key), std::move(fresh)).first->second;
}

Completed PreparedStages::prepare_stage(const Partition& parts, const Key& key, int stage) const {
  const StageGraph own = stage_graph(analysis_.graph, parts, stage);
  StageContext context;
  context.recompute = key.recompute;
  context.in_flight = key.in_flight;
  context.blocks = key.blocks;
  for (OpId op : own.ops) context.names.push_back(names_[at(op)]);
  context.received = key.received;
  context.counted_elsewhere = key.counted_elsewhere;
  context.updated = key.duties.updated;
  for (const Input& input : own.graph.inputs) {
    if (input.kind != InputKind::kParameter || context.updated.shares.contains(input.name))
      continue;
    if (!key.duties.counts || context.updated.elsewhere.contains(input.name))
      context.counted_elsewhere.insert(input.name);
  }
  // Another stage may have the view that splits a weight. The weight keeps the whole graph's
  // factors, under any cuts, with or without a backward pass.
  Prepared prepared = prepare(own.graph, analysis_.optimizer, context);
  const KnownFactors known =
      known_inputs(analysis_.prepared->graph, *analysis_.factors, prepared.graph);
  return undecided(std::move(prepared), known);
}

Completed complete_stage(Completed completed, const Plan& plan, size_t pipeline, size_t s) {
  Pipeline chosen = plan.pipelines[pipeline];
  chosen.microbatches = microbatches_of(chosen, s);
  for (;;) {
    completed.assignment =
        complete(*completed.prepared, *completed.factors, plan, chosen, chosen.stages[s]);
    if (completed.assignment.to_expand.empty()) return completed;
    completed = expand(completed, completed.assignment.to_expand);
  }
}

Completed complete_isomorphic(Completed prepared, const Completed& decided) {
  for (const std::vector<OpId>& turn : decided.expanded) prepared = expand(prepared, turn);
  prepared.assignment = decided.assignment;
  return prepared;
}

std::vector<Completed> prepare_stages(const GraphAnalysis& analysis,
                                      const Plan& plan,
                                      const std::vector<Completed>& planned) {
  if (has_one_stage(plan))
    return {only_stage(analysis, only_pipeline(plan), blocks_of(planned, 1)[0])};
  PreparedStages prepared(analysis);
  return split(prepared, plan, planned);
}

std::vector<Completed> complete_stages(std::vector<Completed> stages, const Plan& plan) {
  std::vector<std::pair<size_t, size_t>> places;  // [stage] its pipeline, its index there
  for (size_t p = 0; p < plan.pipelines.size(); ++p)
    for (size_t s = 0; s < plan.pipelines[p].stages.size(); ++s) places.emplace_back(p, s);
  for_each_in_parallel(stages.size(), [&](size_t i) {
    stages[i] = complete_stage(std::move(stages[i]), plan, places[i].first, places[i].second);
  });
  return stages;
}

std::vector<Completed> complete_stages(const GraphAnalysis& analysis, const Plan& plan) {
  return complete_stages(prepare_stages(analysis, plan), plan);
}

std::vector<Completed> complete_stages(PreparedStages& prepared, const Plan& plan) {
  if (has_one_stage(plan)) return complete_stages(prepared.analysis(), plan);
  return complete_stages(split(prepared, plan), plan);
}

}  // namespace medley
