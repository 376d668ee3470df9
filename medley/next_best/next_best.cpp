#include "medley/next_best/next_best.h"

#include <algorithm>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/lower/complete.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/fit.h"
#include "medley/synthesis/tuning.h"

namespace medley {
namespace {

std::unique_ptr<OpCatalogue> catalogue_of(const Request& request, const Plan& plan) {
  const Pipeline& pipeline = only_pipeline(plan);
  std::vector<int> devices;
  for (const std::string& name : pipeline.stages[0].mesh.devices)
    devices.push_back(find_device(request.cluster, name).value());
  return std::make_unique<OpCatalogue>(
      request.cache.analysis->prepared->graph,
      *request.cache.analysis->factors,
      SpmdMesh(
          *request.costs, std::move(devices), parts_of(plan, pipeline), pipeline.microbatches[0]),
      SpmdPricing{});
}

}  // namespace

bool NextBest::knows(const Plan& plan) {
  if (plan.pipelines.size() != 1 || only_pipeline(plan).stages.size() != 1) return false;
  const Mesh& mesh = only_pipeline(plan).stages[0].mesh;
  return mesh.shape.size() == 1 && mesh.devices.size() > 1 &&
         std::all_of(plan.parts.begin(), plan.parts.end(), [](const Part& part) {
           return part.lengths.empty();
         });
}

NextBest::NextBest(const Request& request, const Plan& plan)
    : request_(request), plan_(plan), catalogue_(catalogue_of(request, plan)) {
  MEDLEY_CHECK(knows(plan));
  std::vector<double> byte_prices;
  for (double price = kLeastBytePrice; price < kMostBytePrice; price *= kBytePriceStep)
    byte_prices.push_back(price);
  if (!take_fastest({0}) && !take_fastest(byte_prices)) static_cast<void>(take_fastest({0}));
}

// Tries prices in sequence until an optimum fits, and returns whether one does.
bool NextBest::take_fastest(const std::vector<double>& byte_prices) {
  std::optional<Simulated> best;
  for (const double byte_price : byte_prices) {
    for (const double exposed : kOverlappedCounts) {
      SpmdOptions options;
      options.microbatches = static_cast<int64_t>(only_pipeline(plan_).microbatches.size());
      options.overlapped_count = exposed;
      options.byte_price = byte_price;
      auto problem =
          std::make_unique<SpmdProblem>(*request_.cache.analysis->prepared, *catalogue_, options);
      std::optional<PbqpSolution> found = solve(problem->pbqp(), search_options());
      MEDLEY_CHECK(found.has_value());  // all replicated is allowed
      std::swap(problem_, problem);
      const Simulated now = simulated(with(found->choices));
      if (best && (now.fits < best->fits || (now.fits == best->fits && now.step >= best->step))) {
        std::swap(problem_, problem);
        continue;
      }
      best = now;
      optimum_ = std::move(*found);
    }
    if (best->fits) return true;
  }
  return false;
}

Plan NextBest::with(const std::vector<int32_t>& choices) const {
  Plan plan = plan_;
  Stage& stage = only_pipeline(plan).stages[0];
  Stage decided = problem_->stage(choices, stage.mesh);
  stage.ops = std::move(decided.ops);
  stage.placements = std::move(decided.placements);
  stage.batch = std::move(decided.batch);
  stage.updates = std::move(decided.updates);
  return plan;
}

std::optional<Alternative> NextBest::without(
    const std::vector<std::string>& names,
    const std::function<bool(const std::string& choice)>& forbidden) const {
  Pbqp changed = problem_->pbqp();
  std::map<std::pair<int32_t, std::vector<bool>>, int32_t> unaries;  // with forbidden choices
  std::map<std::string, int> variables;
  for (const std::string& name : names) {
    const int variable = problem_->variable_of(name);
    if (variable < 0) continue;
    variables[name] = variable;
    std::vector<bool> without(at(changed.num_choices(variable)));
    for (size_t c = 0; c < without.size(); ++c)
      without[c] = forbidden(problem_->choice_text(variable, static_cast<int32_t>(c)));
    const int32_t before = changed.unary_of[at(variable)];
    const auto [found, is_new] =
        unaries.try_emplace({before, without}, static_cast<int32_t>(changed.unaries.size()));
    if (is_new) {
      std::vector<int64_t> costs = changed.unaries[at(before)];
      for (size_t c = 0; c < costs.size(); ++c)
        if (without[c]) costs[c] = kForbidden;
      changed.unaries.push_back(std::move(costs));
    }
    changed.unary_of[at(variable)] = found->second;
  }
  if (variables.empty()) return std::nullopt;
  const std::optional<PbqpSolution> found = solve(changed, search_options());
  if (!found) return std::nullopt;
  Alternative alternative;
  alternative.plan = with(found->choices);
  for (const auto& [name, variable] : variables)
    alternative.choices[name] = problem_->choice_text(variable, found->choices[at(variable)]);
  alternative.loss = {(found->cost - optimum_.cost) / kTicksPerNanosecond};
  alternative.proved = found->cost == found->lower_bound && optimum_.cost == optimum_.lower_bound;
  return alternative;
}

Simulated NextBest::simulated(const Plan& of) const {
  const Program program = lower(request_, of);
  return {simulate(program, *request_.costs).step, !find_misfit(program, request_)};
}

}  // namespace medley
