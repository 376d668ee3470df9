#include "medley/synthesis/spmd_decide.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "medley/base/parallel.h"
#include "medley/synthesis/fit.h"
#include "medley/synthesis/shorten.h"
#include "medley/synthesis/tuning.h"

namespace medley {

Plan meaning_of(Plan plan) {
  plan.strategy.clear();
  drop_unused_parts(plan);
  return plan;
}

SpmdCandidate* find_priced(SpmdPriced& priced, const Plan& meaning) {
  for (auto& [known, candidate] : priced)
    if (known == meaning) return &candidate;
  return nullptr;
}

const SpmdCandidate* find_priced(const SpmdPriced& priced, const Plan& meaning) {
  for (const auto& [known, candidate] : priced)
    if (known == meaning) return &candidate;
  return nullptr;
}

SpmdDecided SpmdDecider::decide(SpmdDivision& division, const SpmdOptions& options) const {
  SpmdDecided decided{options, std::nullopt, {}, {}};
  why_left_out(request_, [&] { decided = decide_or_throw(division, options); });
  return decided;
}

SpmdDecided SpmdDecider::decide_or_throw(SpmdDivision& division, const SpmdOptions& options) const {
  const SpmdProblem problem(*request_.cache.analysis->prepared, division.catalogue, options);
  const std::optional<PbqpSolution> found = solve(problem.pbqp(), search_options());
  if (!found) return {options, std::nullopt, {}, {}};
  Plan plan = division.outline;
  Stage& stage = only_pipeline(plan).stages[0];
  stage = problem.stage(found->choices, stage.mesh);
  // Decides the plan in its final form: undivided rows would divide open ops. On one axis, ratios
  // and other decisions follow, which need all parts.
  if (starts_.layouts()[division.start.layout].shape.size() > 1) drop_unused_parts(plan);
  return {options,
          std::move(plan),
          {found->lower_bound / kTicksPerNanosecond},
          {found->cost / kTicksPerNanosecond}};
}

SpmdCandidate SpmdDecider::price(const Plan& plan) const {
  SpmdCandidate candidate;
  const auto why = why_left_out(request_, [&] {
    candidate.program = lower(request_, plan);
    candidate.step = medley::price(request_, candidate.program);
    if (const auto misfit = find_misfit(candidate.program, request_)) {
      candidate.missing_bytes = misfit->bytes();
      candidate.of_any_count = misfit->of_any_count;
    }
  });
  if (why) return {.left_out = true};
  return candidate;
}

SpmdAhead SpmdDecider::look_ahead(const SpmdStart& start,
                                  int64_t microbatches,
                                  std::optional<Nanoseconds> to_beat,
                                  const SpmdPriced& known) const {
  SpmdAhead ahead;
  ahead.microbatches = microbatches;
  ahead.division = std::make_unique<SpmdDivision>(starts_.divide(start, microbatches));
  const auto loses = [&](Nanoseconds time, double gain = 1) {
    return to_beat && time / *to_beat > gain;
  };
  std::array<SpmdDecided, kOverlappedCounts.size()> decided;
  std::array<SpmdPriced, decided.size()> priced;
  // Returns whether the decision justifies a memory price.
  const auto decide_at = [&](size_t i) {
    SpmdOptions options;
    options.microbatches = microbatches;
    options.overlapped_count = kOverlappedCounts[i];
    decided[i] = decide(*ahead.division, options);
    return decided[i].plan && !loses(decided[i].bound, 1 + kOverlappedCounts[i]);
  };
  const auto price_at = [&](size_t i) {
    Plan plan = *decided[i].plan;
    for (const bool recomputes : {false, true}) {
      if (recomputes) only_pipeline(plan).stages[0].recompute = "blocks";
      Plan meaning = meaning_of(plan);
      const SpmdCandidate* candidate = find_priced(known, meaning);
      if (!candidate) candidate = &priced[i].emplace_back(std::move(meaning), price(plan)).second;
      if (candidate->fits() || loses(candidate->step)) return;
    }
  };
  size_t count = 1;
  if (decide_at(0)) {
    count = decided.size();
    for_each_in_parallel(count, [&](size_t i) {
      if (i == 0 || decide_at(i)) price_at(i);
    });
  }
  for (size_t i = 0; i < count; ++i) {
    ahead.decided.push_back(std::move(decided[i]));
    std::ranges::move(priced[i], std::back_inserter(ahead.priced));
  }
  return ahead;
}

}  // namespace medley
