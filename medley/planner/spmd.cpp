#include "medley/planner/spmd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "medley/base/error.h"
#include "medley/plan/apportion.h"
#include "medley/planner/data_parallel.h"
#include "medley/planner/fit.h"
#include "medley/planner/mesh_layouts.h"
#include "medley/planner/ratio_problem.h"
#include "medley/planner/shorten.h"
#include "medley/program/lower.h"
#include "medley/sharding/coupling.h"
#include "medley/sim/simulate.h"

namespace medley {
namespace {

constexpr const char* kSpeed = "speed";
constexpr const char* kMemory = "memory";  // in proportion to it, where it is short

// How often decisions and ratios take turns.
constexpr int kMostRounds = 3;

// Ticks per byte at which a search holds as little as possible.
constexpr double kOnlyBytes = 1e3;

struct Candidate {
  Plan plan;
  Program program;
  Nanoseconds step;
  double missing_bytes = 0;  // on all devices
  bool fits() const { return missing_bytes == 0; }

  // Of those that do not fit, the nearest to it, which is the one to complain about.
  bool better_than(const Candidate& other) const {
    if (missing_bytes != other.missing_bytes) return missing_bytes < other.missing_bytes;
    return step < other.step;
  }
};

// How devices share: rows of the batch, and everything else. On a mesh of nodes the nodes share,
// and the devices of a node are alike.
struct Start {
  size_t layout = 0;           // of the search
  std::vector<int64_t> rows;   // [place on the first axis]
  std::vector<double> shares;  // [place] of the part "speed"
  std::vector<double> memory;  // [place] of the part "memory"; empty: there is none
  bool operator==(const Start&) const = default;
};

// What all searches for one start and number of micro-batches have in common.
struct Division {
  Start start;
  Plan outline;  // without decisions
  OpCatalogue catalogue;
};

// What a search is about.
struct Question {
  Start start;
  SpmdOptions options;
  bool operator==(const Question&) const = default;
};

class Synthesis {
 public:
  Synthesis(const Request& request, bool even)
      : request_(request),
        even_(even),
        layouts_(mesh_layouts(request.cluster, devices_of(request))),
        ground_(*request.ground),
        prepared_(*ground_.prepared),
        factors_(*ground_.factors),
        meet_(ground_.coupled_at) {
    for (const MeshLayout& layout : layouts_) speeds_.push_back(speeds(layout.devices));
  }

  Outcome run() {
    consider_data_parallel();
    search_one_axis();
    if (best_ && best_->fits() && !even_) {
      SpmdOptions options = best_options_.value_or(SpmdOptions{});
      options.microbatches = static_cast<int64_t>(best_->plan.pipelines[0].microbatches.size());
      alternate(options);
    }
    if (layouts_.size() > 1) search_nodes();
    if (!best_) return Infeasible{"no candidate was found"};
    shorten(best_->plan.pipelines[0].stages[0], prepared_.names);
    if (!best_->fits()) return Infeasible{explain_misfit(best_->plan, request_)};
    best_->plan.strategy = request_.strategy;
    drop_unused_parts(best_->plan);
    return std::move(best_->plan);
  }

  // The least cost of the model when every device counts by its speed; of the divisions that the
  // search starts from the cheapest, since even rows may balance the links that rows by speed do
  // not.
  Nanoseconds lower_bound() {
    Nanoseconds least{std::numeric_limits<int64_t>::max()};
    for (size_t layout = 0; layout < layouts_.size(); ++layout)
      for (const Start& start : starts(layout)) least = std::min(least, lower_bound(start));
    return least;
  }

 private:
  // With more and more micro-batches while that is needed to fit, or helps.
  void search_one_axis() {
    const std::vector<Start> all = starts(0);
    bool gained_before = false;
    for (int64_t count = first_count();; count *= 2) {
      const bool had_fit = best_ && best_->fits();
      const Nanoseconds before = best_ ? best_->step : Nanoseconds{};
      bool fits = false;
      for (size_t i = 0; i < all.size(); ++i) {
        report(request_,
               fmt::format("{} with {} micro-batches", request_.strategy, count),
               i + 1,
               all.size());
        fits |= search(all[i], count);
      }
      const bool gained = best_ && best_->fits() && (!had_fit || best_->step < before);
      if (request_.microbatches > 0 || !meet_.empty() || (fits && (!gained || count == 1))) break;
      if (gained_before && !gained) break;
      gained_before |= gained;
      if (2 * count > request_.global_batch) break;
    }
  }

  // A search takes ten times as long as one of one axis, so that it is for as many micro-batches as
  // are best there, and over where there is no memory for any of its plans.
  void search_nodes() {
    const std::vector<Start> all = starts(1);
    const int64_t count =
        best_ ? static_cast<int64_t>(best_->plan.pipelines[0].microbatches.size()) : first_count();
    for (size_t i = 0; i < all.size(); ++i) {
      report(request_, request_.strategy + " on nodes", i + 1, all.size());
      search(all[i], count);
    }
  }

  // With the lengths that communications have from this start.
  Nanoseconds lower_bound(const Start& start) {
    SpmdPricing pricing;
    const std::vector<double>& speeds = speeds_[start.layout];
    const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    for (double each : speeds) pricing.weights.push_back(each / sum);
    Division division = divide(start, first_count(), std::move(pricing));
    SpmdOptions options;
    options.microbatches = first_count();
    int64_t bound = 0;
    for (double k : {1.0, 0.75, 0.5, 0.25}) {
      options.ops_count = k;
      options.overlapped_count = 1 - k;
      const SpmdProblem problem(prepared_, division.catalogue, options);
      if (const auto found = solve(problem.pbqp(), search_options()))
        bound = std::max(bound, found->lower_bound);
    }
    return {bound / kTicksPerNanosecond};
  }

  int64_t first_count() const { return std::max<int64_t>(1, request_.microbatches); }

  // Rows per second of each device when it computes all of the model; of the fastest 1.
  std::vector<double> speeds(const std::vector<int>& devices) const {
    std::vector<double> result;
    for (const RowTime& time : row_times(request_, devices)) result.push_back(1 / time.per_row);
    return of_largest(std::move(result));
  }

  static std::vector<double> of_largest(std::vector<double> shares) {
    const double most = *std::max_element(shares.begin(), shares.end());
    for (double& each : shares) each = std::max(each / most, kMinShare);
    return shares;
  }

  std::vector<Start> starts(size_t layout) const {
    const MeshLayout& mesh = layouts_[layout];
    const std::vector<double> even(mesh.num_places(), 1.0);
    const std::vector<int64_t> rows = apportion(request_.global_batch, even);
    if (even_) return {{layout, rows, even, {}}};
    const std::vector<double> speeds = of_largest(sums_of_places(mesh, speeds_[layout]));
    std::vector<Start> all{{layout,
                            layout == 0 ? proportional_rows(request_, mesh.devices)
                                        : apportion(request_.global_batch, speeds),
                            speeds,
                            {}}};
    for (const std::vector<double>& shares : {speeds, even}) {
      // Of two axes a search takes ten times as long, and finds even parts in that by speed.
      if (layout > 0 && shares == even && speeds != even) continue;
      Start other{layout, rows, shares, {}};
      if (std::find(all.begin(), all.end(), other) == all.end()) all.push_back(std::move(other));
    }
    return all;
  }

  Plan outline(const Start& start, int64_t microbatches) const {
    const MeshLayout& layout = layouts_[start.layout];
    Plan plan = empty_plan(request_, layout.devices, start.rows, microbatches);
    plan.pipelines[0].stages[0].mesh = mesh_of(layout, request_.cluster);
    if (!are_equal(start.shares)) plan.parts.push_back({kSpeed, {}, start.shares});
    if (!start.memory.empty()) plan.parts.push_back({kMemory, {}, start.memory});
    return plan;
  }

  // Where devices differ in memory, what is stored may be divided by it, too.
  Start with_memory(Start start) const {
    const MeshLayout& layout = layouts_[start.layout];
    std::vector<double> memory;
    for (const int device : layout.devices)
      memory.push_back(request_.cluster.kind(device).memory_bytes);
    start.memory = of_largest(sums_of_places(layout, memory));
    if (are_equal(start.memory)) start.memory.clear();
    return start;
  }

  Division divide(const Start& start, int64_t microbatches, SpmdPricing pricing = {}) const {
    Plan plan = outline(start, microbatches);
    const Pipeline& pipeline = plan.pipelines[0];
    const MeshLayout& layout = layouts_[start.layout];
    SpmdMesh mesh(*request_.costs,
                  layout.devices,
                  parts_of(plan, pipeline),
                  pipeline.microbatches[0],
                  layout.shape);
    return {start,
            std::move(plan),
            OpCatalogue(prepared_.graph, factors_, std::move(mesh), std::move(pricing))};
  }

  // Plans that do the same are priced once. The second time there is no program: nobody needs that
  // of a plan that is no better than one before.
  Candidate price(Plan plan) {
    const auto [known, added] = priced_.try_emplace(meaning_of(plan));
    Candidate candidate = added ? price_anew(plan) : known->second;
    if (added) known->second = {{}, {}, candidate.step, candidate.missing_bytes};
    candidate.plan = std::move(plan);
    return candidate;
  }

  // Equal for plans that differ in what they do not use.
  static std::string meaning_of(Plan plan) {
    plan.strategy.clear();
    drop_unused_parts(plan);
    return hash(plan);
  }

  Candidate price_anew(const Plan& plan) const {
    Candidate candidate;
    candidate.program = lower(ground_, plan, request_.cluster);
    candidate.step = simulate(candidate.program, *request_.costs).step;
    if (const auto misfit = find_misfit(plan, candidate.program, request_))
      candidate.missing_bytes = misfit->bytes();
    return candidate;
  }

  // Other ratios for the best decisions, then other decisions for these ratios, while it helps.
  void alternate(const SpmdOptions& options) {
    for (int round = 0; round < kMostRounds; ++round) {
      const auto ratios = best_ratios(ratio_problem(best_->plan, best_->program, *request_.costs));
      const auto* found = std::get_if<Ratios>(&ratios);
      if (!found) return;
      Candidate divided = price(with_ratios(best_->plan, found->shares));
      const Start start = start_of(divided.plan);
      const bool helped = keep(std::move(divided));
      bool gained = false;
      if (std::find(asked_.begin(), asked_.end(), Question{start, options}) == asked_.end()) {
        Division division = divide(start, options.microbatches);
        std::optional<Candidate> decided = decide(division, options);
        if (!decided) return;
        gained = keep(std::move(*decided));
      }
      if (!helped && !gained) return;
    }
  }

  Start start_of(const Plan& plan) const {
    Start start{0, std::vector<int64_t>(layouts_[0].devices.size(), 0), speeds_[0], {}};
    for (const Microbatch& microbatch : plan.pipelines[0].microbatches)
      for (size_t d = 0; d < microbatch.lengths.size(); ++d) start.rows[d] += microbatch.lengths[d];
    for (const Part& part : plan.parts)
      (part.name == kSpeed ? start.shares : start.memory) = part.shares;
    return start;
  }

  bool keep(Candidate candidate) {
    const bool better = !best_ || candidate.better_than(*best_);
    if (better) best_ = std::move(candidate);
    return better;
  }

  void consider_data_parallel() {
    const std::vector<int>& devices = layouts_[0].devices;
    for (const std::string_view strategy : {"data-parallel-even", "data-parallel-proportional"}) {
      const bool evenly = strategy == "data-parallel-even";
      if (even_ && !evenly) continue;
      if (meet_.empty() || first_count() == 1) {
        // What the strategy tries first: if that fits it is the strategy's answer.
        const std::vector<int64_t> rows =
            evenly ? even_rows(request_, devices) : proportional_rows(request_, devices);
        Candidate first = price(empty_plan(request_, devices, rows, first_count()));
        if (first.fits()) {
          keep(std::move(first));
          continue;
        }
      }
      Outcome outcome = outcome_of(strategy, request_);
      if (auto* found = std::get_if<Plan>(&outcome)) keep(price(std::move(*found)));
    }
  }

  std::optional<Candidate> decide(Division& division, const SpmdOptions& options) {
    asked_.push_back({division.start, options});
    const SpmdProblem problem(prepared_, division.catalogue, options);
    const std::optional<PbqpSolution> found = solve(problem.pbqp(), search_options());
    if (!found) return std::nullopt;
    Plan plan = division.outline;
    Stage& stage = plan.pipelines[0].stages[0];
    stage = problem.stage(found->choices, stage.mesh);
    // As the plan will be in the end: rows that nothing is divided by would divide what is left
    // open. With one axis, ratios and other decisions follow, which want all parts.
    if (layouts_[division.start.layout].shape.size() > 1) drop_unused_parts(plan);
    return price(std::move(plan));
  }

  // Returns whether some plan fits without a price on memory.
  bool search(const Start& start, int64_t microbatches) {
    if (microbatches > 1 && *std::max_element(start.rows.begin(), start.rows.end()) < microbatches)
      return true;
    SpmdOptions options;
    options.microbatches = microbatches;
    Division division = divide(start, microbatches);
    std::optional<Division> roomy;  // if it differs, and is needed
    const Start memory_counts = even_ ? start : with_memory(start);
    bool fits = false;
    for (double exposed : kOverlappedCounts) {
      options.overlapped_count = exposed;
      std::optional<Candidate> found = decide(division, options);
      if (!found) continue;
      const bool ok = found->fits();
      if (!ok && keep(recomputed(found->plan))) best_options_ = options;
      if (keep(std::move(*found))) best_options_ = options;
      fits |= ok;
      if (ok) continue;
      if (!roomy && memory_counts != start) roomy.emplace(divide(memory_counts, microbatches));
      if (!pay_for_memory(roomy ? *roomy : division, options)) break;
    }
    return fits;
  }

  // The same decisions, blocks computed again rather than kept.
  Candidate recomputed(Plan plan) {
    plan.pipelines[0].stages[0].recompute = "blocks";
    return price(std::move(plan));
  }

  // The smallest price per byte at which the plan fits, to a factor of two. Returns false if not
  // even what holds least fits. What was enough the last time is most likely about right.
  bool pay_for_memory(Division& division, SpmdOptions options) {
    const auto fits_at = [&](double price) {
      options.byte_price = price;
      std::optional<Candidate> found = decide(division, options);
      const bool fits = found && found->fits();
      if (found) keep(std::move(*found));
      return fits;
    };
    double low = 0, high = enough_.value_or(kLeastBytePrice);
    if (enough_ && fits_at(high)) {
      while (high > kLeastBytePrice && low == 0)
        (fits_at(high / kBytePriceStep) ? high : low) = high / kBytePriceStep;
    } else {
      if (!fits_at(kOnlyBytes)) return false;
      if (enough_) low = high, high *= kBytePriceStep;
      for (; high < kMostBytePrice && !fits_at(high); high *= kBytePriceStep) low = high;
    }
    if (high >= kMostBytePrice) return true;
    enough_ = high;
    for (int i = 0; i < 2 && low > 0; ++i) {
      const double middle = std::sqrt(low * high);
      (fits_at(middle) ? high : low) = middle;
    }
    return true;
  }

  const Request& request_;
  const bool even_;  // all devices get equal shares
  const std::vector<MeshLayout> layouts_;
  const Groundwork& ground_;
  const Prepared& prepared_;
  const Factors& factors_;
  const std::string& meet_;                  // where rows meet: one micro-batch only
  std::vector<std::vector<double>> speeds_;  // [layout][device]
  std::map<std::string, Candidate> priced_;  // by meaning, without plans and programs
  std::vector<Question> asked_;
  std::optional<double> enough_;  // of prices per byte, the last at which something did fit
  std::optional<Candidate> best_;
  std::optional<SpmdOptions> best_options_;  // of the search that found it; nothing: data parallel
};

}  // namespace

Outcome hap(const Request& request) { return Synthesis(request, false).run(); }
Outcome hap_even(const Request& request) { return Synthesis(request, true).run(); }

Nanoseconds spmd_lower_bound(const Request& request) {
  return Synthesis(request, false).lower_bound();
}

}  // namespace medley
