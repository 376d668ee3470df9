#include "medley/synthesis/spmd.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <utility>

#include "medley/base/parallel.h"
#include "medley/lower/lower.h"
#include "medley/sharding/coupling.h"
#include "medley/sharding/parts.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/fit.h"
#include "medley/synthesis/interleave.h"
#include "medley/synthesis/mesh_layouts.h"
#include "medley/synthesis/node_levels.h"
#include "medley/synthesis/price_search.h"
#include "medley/synthesis/ratio_problem.h"
#include "medley/synthesis/shorten.h"
#include "medley/synthesis/spmd_decide.h"
#include "medley/synthesis/spmd_starts.h"
#include "medley/synthesis/tuning.h"

namespace medley {
namespace {

// Parameters of a search.
struct SearchPoint {
  SpmdStart start;
  SpmdOptions options;
  bool operator==(const SearchPoint&) const = default;
};

// Results that some searches share.
struct SearchResult {
  SpmdPriced priced;  // without plans and programs
  SpmdAhead ahead;    // affects speed only
  std::vector<SearchPoint> asked;
  std::optional<double> last_price;  // last price per byte with a fit
  std::optional<SpmdCandidate> best;
  std::optional<SpmdOptions> best_options;  // its search's; nullopt: data parallel
};

bool keep(SearchResult& found, SpmdCandidate candidate) {
  const bool better = !candidate.pruned && !candidate.left_out &&
                      (!found.best || candidate.better_than(*found.best));
  if (better) found.best = std::move(candidate);
  return better;
}

// Result of the searches from one start, or from several.
struct SearchVerdict {
  bool fits = false;  // a plan fits without a memory price
  // No plan justifies a memory price, nor a search with more micro-batches.
  bool cannot_win = true;
};

class Synthesis {
 public:
  Synthesis(const Request& request, bool even)
      : request_(request),
        even_(even),
        starts_(request, even),
        decider_(request, starts_),
        analysis_(*request.cache.analysis),
        prepared_(*analysis_.prepared),
        coupling_(analysis_.coupling) {}

  Outcome run() {
    if (!request_.faster_than || has_room_for_replicas(request_)) try_replicas();
    look_at_nodes_beside([&] {
      begin();
      search_one_axis();
      divide_otherwise();
    });
    std::optional<SpmdCandidate>& best = found_.best;
    // With a plan to beat, nodes are not searched for memory that one axis lacks.
    if (!hopeless_ && (fitting_step() || !request_.faster_than)) search_nodes();
    if (!best) return request_.ask(even_ ? "data-parallel-even" : "data-parallel-proportional");
    shorten(only_pipeline(best->plan).stages[0], prepared_.names);
    if (!best->fits()) return explain_misfit(best->plan, request_);
    best->plan.strategy = request_.strategy;
    drop_unused_parts(best->plan);
    if (even_) return std::move(best->plan);
    return interleave_if_faster(request_, best->plan, std::move(best->program));
  }

  // Returns the least cost of the model with devices weighted by speed. It is the minimum over the
  // search's starts and their spreads over nodes, which may balance links better than rows by
  // speed.
  Nanoseconds lower_bound() {
    std::vector<SpmdStart> all;
    for (size_t layout = 0; layout < starts_.layouts().size(); ++layout)
      for (const SpmdStart& start : starts_.of(layout)) all.push_back(start);
    for (const std::vector<double>& shares :
         shares_of_levels(request_.cluster, starts_.layouts()[0].devices, starts_.speeds(0)))
      all.push_back({0, apportion(request_.global_batch, shares), shares, {}});
    std::vector<Nanoseconds> bounds(all.size());
    for_each_in_parallel(all.size(), [&](size_t i) { bounds[i] = lower_bound(all[i]); });
    return *std::ranges::min_element(bounds);
  }

 private:
  // Uses more and more micro-batches while that is needed to fit, or helps.
  void search_one_axis() {
    std::vector<SpmdStart> all = starts_.of(0);
    bool gained_before = false;
    for (int64_t count = first_count(), factor = 2;; count *= factor) {
      const std::optional<Nanoseconds> before = fitting_step();
      const SearchVerdict ending =
          search(all, count, fmt::format("{} with {} micro-batches", request_.strategy, count));
      const bool gained = fitting_step() && (!before || *fitting_step() < *before);
      if (ending.cannot_win || (ending.fits && (!gained || count == 1))) break;
      const double missing = found_.best ? found_.best->missing_bytes : 0;
      factor = std::min(times_microbatches(missing, request_.cluster, starts_.layouts()[0].devices),
                        std::max<int64_t>(2, kManyMicrobatches / count));
      if (count == first_count() && !fitting_step() && !anything_fits(all)) {
        hopeless_ = true;
        break;
      }
      if (gained_before && !gained) break;
      gained_before |= gained;
      if (!may_double(count)) break;
      if (count >= kManyMicrobatches && (!found_.best || found_.best->of_any_count)) break;
    }
  }

  // Returns whether the least-memory decisions fit from any start, with the most micro-batches, or
  // it takes long to know. If not, no price and no smaller number fits either.
  bool anything_fits(const std::vector<SpmdStart>& all) {
    report(request_, request_.strategy + ": what holds least", all.size(), all.size());
    for (const SpmdStart& start : all) {
      const int64_t most = std::ranges::max(start.rows);
      if (may_double(kManyMicrobatches) && most > kManyMicrobatches) return true;
      SpmdOptions options;
      options.microbatches = first_count();
      options.byte_price = kMostBytePrice;
      while (may_double(options.microbatches) && 2 * options.microbatches <= most)
        options.microbatches *= 2;
      std::optional<SpmdCandidate> least =
          decide_at(even_ ? start : starts_.with_memory(start), options);
      if (!least) continue;
      // Plans far from the target matter only if they fit.
      const bool slow = cannot_win(found_, least->step);
      std::vector<SpmdCandidate> some;
      if (!least->fits()) some.push_back(recomputed(found_, least->plan));
      some.push_back(std::move(*least));
      for (SpmdCandidate& each : some) {
        if (slow && each.fits()) return true;
        keep(found_, std::move(each));
      }
      if (fitting_step()) return true;
    }
    return false;
  }

  // A 2-D search takes ten times as long as a 1-D one. It uses the best 1-D number of
  // micro-batches, and ends if no plan fits.
  void search_nodes() {
    if (starts_.layouts().size() == 1) return;
    const std::optional<SpmdCandidate>& best = found_.best;
    const int64_t count =
        best ? static_cast<int64_t>(only_pipeline(best->plan).microbatches.size()) : first_count();
    std::vector<SpmdStart> all = starts_.of(1);
    search(all, count, request_.strategy + " on nodes");
  }

  void divide_otherwise() {
    const std::optional<SpmdCandidate>& best = found_.best;
    if (!best || !best->fits() || even_) return;
    SpmdOptions options = found_.best_options.value_or(SpmdOptions{});
    options.microbatches = static_cast<int64_t>(only_pipeline(best->plan).microbatches.size());
    spread_over_nodes(options);
    alternate(options);
  }

  std::optional<Nanoseconds> fitting_step() const {
    return found_.best && found_.best->fits() ? std::optional(found_.best->step) : std::nullopt;
  }

  // Searches from all starts on all cores; on one axis from the first one alone while no sufficient
  // memory price is known. The result is independent of the number of cores. Removes starts that
  // cannot win.
  SearchVerdict search(std::vector<SpmdStart>& all, int64_t microbatches, const std::string& what) {
    SearchVerdict ending;
    std::vector<SpmdStart> left;
    for (size_t begin = 0; begin < all.size();) {
      const bool one_first = begin == 0 && !found_.last_price && all[0].layout == 0;
      const size_t end = one_first ? 1 : all.size();
      report(request_, what, end, all.size());
      std::vector<SearchResult> found(end - begin);
      std::vector<SearchVerdict> endings(found.size());
      for (size_t i = 0; i < found.size(); ++i) {
        found[i].last_price = found_.last_price;
        found[i].ahead = taken(all[begin + i], microbatches);
      }
      for_each_in_parallel(found.size(), [&](size_t i) {
        endings[i] = search(found[i], all[begin + i], microbatches, found.size() == 1);
      });
      for (size_t i = 0; i < found.size(); ++i) {
        add(std::move(found[i]));
        ending.fits |= endings[i].fits;
        ending.cannot_win &= endings[i].cannot_win;
        if (!endings[i].cannot_win) left.push_back(all[begin + i]);
      }
      begin = end;
    }
    all = std::move(left);
    return ending;
  }

  void add(SearchResult other) {
    for (auto& one : other.priced)
      if (!find_priced(found_.priced, one.first)) found_.priced.push_back(std::move(one));
    found_.asked.insert(found_.asked.end(), other.asked.begin(), other.asked.end());
    found_.last_price = other.last_price;
    if (!other.best || !keep(found_, std::move(*other.best))) return;
    if (other.best_options) found_.best_options = other.best_options;
  }

  // Uses the lengths of communications from this start.
  Nanoseconds lower_bound(const SpmdStart& start) const {
    SpmdPricing pricing;
    const std::vector<double>& speeds = starts_.speeds(start.layout);
    const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    for (double each : speeds) pricing.weights.push_back(each / sum);
    SpmdDivision division = starts_.divide(start, first_count(), std::move(pricing));
    int64_t bound = 0;
    for (double k : {1.0, 0.75, 0.5, 0.25}) {
      const SpmdOptions options{.microbatches = first_count(),
                                .ops_count = k,
                                .overlapped_count = 1 - k,
                                .waits_count = coupling_.empty() ? 1 - k : 1};
      const SpmdProblem problem(prepared_, division.catalogue, options);
      if (const auto found = solve(problem.pbqp(), search_options()))
        bound = std::max(bound, found->lower_bound);
    }
    return {bound / kTicksPerNanosecond};
  }

  int64_t first_count() const { return std::max<int64_t>(1, request_.microbatches); }

  static SpmdCandidate without_program(const SpmdCandidate& candidate) {
    return {.step = candidate.step,
            .missing_bytes = candidate.missing_bytes,
            .of_any_count = candidate.of_any_count,
            .left_out = candidate.left_out};
  }

  // Prices equivalent plans once. The second result has no program, since it is no better than the
  // first.
  SpmdCandidate price(SearchResult& found, Plan plan) const {
    Plan meaning = meaning_of(plan);
    for (const SearchResult* known : {&found_, &std::as_const(found)})
      if (const SpmdCandidate* priced = find_priced(known->priced, meaning)) {
        SpmdCandidate again = *priced;
        again.plan = std::move(plan);
        return again;
      }
    SpmdCandidate* ahead = find_priced(found.ahead.priced, meaning);
    SpmdCandidate candidate = ahead ? std::move(*ahead) : decider_.price(plan);
    found.priced.emplace_back(std::move(meaning), without_program(candidate));
    candidate.plan = std::move(plan);
    return candidate;
  }

  // Finds the best decisions with the shares of every level, and new decisions for the best of
  // these. The later ratios know devices, but not the ports that a node's devices share.
  void spread_over_nodes(SpmdOptions& options) {
    const std::vector<std::vector<double>> levels =
        shares_of_levels(request_.cluster, starts_.layouts()[0].devices, starts_.speeds(0));
    if (levels.empty() || uneven_ports(simulate(found_.best->program, *request_.costs),
                                       request_.costs->topology()) < kWorthTrying)
      return;
    const Nanoseconds before = found_.best->step;
    Plan plan = found_.best->plan;
    drop_unused_parts(plan);
    if (std::ranges::count(plan.parts, kSpeedPart, &Part::name) == 0) {  // even shares
      const std::vector<double>& shares = levels[levels.size() / 2];
      const std::vector<int64_t> rows = apportion(request_.global_batch, shares);
      std::optional<SpmdCandidate> uneven = decide_at({0, rows, shares, {}}, options);
      if (!uneven) return;
      plan = uneven->plan;
      keep(found_, std::move(*uneven));
    }
    std::vector<SearchResult> found(levels.size());
    for_each_in_parallel(found.size(), [&](size_t i) {
      Plan spread = with_shares(plan, levels[i]);
      SpmdCandidate first = price(found[i], spread);
      const bool lacks_memory = first.step < before && !first.fits();
      keep(found[i], std::move(first));
      if (lacks_memory && halve_microbatches(spread))
        keep(found[i], price(found[i], std::move(spread)));
    });
    for (SearchResult& each : found) add(std::move(each));
    if (found_.best->step == before) return;
    const Plan& spread = found_.best->plan;
    options.microbatches = static_cast<int64_t>(only_pipeline(spread).microbatches.size());
    const SpmdStart start = starts_.of(spread);
    if (is_asked(start, options)) return;
    if (std::optional<SpmdCandidate> decided = decide_at(start, options))
      keep(found_, std::move(*decided));
  }

  // Doubles the micro-batches. Returns false if that is forbidden, or rows are undivided.
  bool halve_microbatches(Plan& plan) const {
    const auto& microbatches = only_pipeline(plan).microbatches;
    const auto count = static_cast<int64_t>(microbatches.size());
    if (!may_double(count) || microbatches[0].lengths.empty()) return false;
    plan = with_rows(plan, step_rows(plan), 2 * count);
    return true;
  }

  // Returns whether twice as many micro-batches are allowed.
  bool may_double(int64_t count) const {
    return request_.microbatches == 0 && coupling_.empty() && 2 * count <= request_.global_batch;
  }

  bool is_asked(const SpmdStart& start, const SpmdOptions& options) const {
    return std::ranges::count(found_.asked, SearchPoint{start, options}) > 0;
  }

  // Returns nullopt if no decisions are allowed, or none can win.
  std::optional<SpmdCandidate> decide_at(const SpmdStart& start, const SpmdOptions& options) {
    SpmdDivision division = starts_.divide(start, options.microbatches);
    std::optional<SpmdCandidate> found = decide(found_, division, options);
    return found && found->pruned ? std::nullopt : std::move(found);
  }

  // Alternates ratios for the best decisions and decisions for these ratios, while it helps.
  void alternate(const SpmdOptions& options) {
    for (;;) {
      const SpmdCandidate& best = *found_.best;
      const auto ratios = best_ratios(ratio_problem(best.plan, best.program, *request_.costs));
      const auto* found = std::get_if<Ratios>(&ratios);
      if (!found) return;
      SpmdCandidate divided = price(found_, with_ratios(best.plan, found->shares));
      const SpmdStart start = starts_.of(divided.plan);
      const bool helped = keep(found_, std::move(divided));
      bool gained = false;
      if (!is_asked(start, options)) {
        std::optional<SpmdCandidate> decided = decide_at(start, options);
        gained = decided && keep(found_, std::move(*decided));
      }
      if (!helped && !gained) return;
    }
  }

  // Tries data parallelism as its strategies do first, which is their answer if it fits.
  void try_replicas() {
    const std::vector<int>& devices = starts_.layouts()[0].devices;
    std::vector<std::vector<int64_t>> rows{even_rows(request_, devices)};
    if (!even_ && starts_.of(0)[0].rows != rows[0]) rows.push_back(starts_.of(0)[0].rows);
    std::vector<SpmdCandidate> tried(rows.size());
    const bool may_be_first = coupling_.empty() || first_count() == 1;
    if (may_be_first)
      for_each_in_parallel(rows.size(), [&](size_t i) {
        tried[i] = priced(empty_plan(request_, devices, rows[i], first_count()));
      });
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!may_be_first || !tried[i].fits())
        asked_again_.push_back(i == 0 ? "data-parallel-even" : "data-parallel-proportional");
      if (may_be_first) note(std::move(tried[i]));
    }
  }

  // Runs the strategies' remaining tries and the first decisions in parallel.
  void begin() {
    std::vector<std::optional<SpmdCandidate>> answers(asked_again_.size());
    ahead_of_first_.emplace_back();
    for_each_in_parallel(answers.size() + 1, [&](size_t i) {
      if (i == answers.size()) {
        ahead_of_first_[0] =
            decider_.look_ahead(starts_.of(0)[0], first_count(), request_.faster_than, {});
        return;
      }
      Outcome outcome = Infeasible{};
      why_left_out(request_, [&] { outcome = request_.ask(asked_again_[i]); });
      if (auto* found = std::get_if<Plan>(&outcome)) answers[i] = priced(std::move(*found));
    });
    for (std::optional<SpmdCandidate>& answer : answers)
      if (answer) note(std::move(*answer));
  }

  SpmdCandidate priced(Plan plan) const {
    SpmdCandidate candidate = decider_.price(plan);
    candidate.plan = std::move(plan);
    return candidate;
  }

  void note(SpmdCandidate candidate) {
    found_.priced.emplace_back(meaning_of(candidate.plan), without_program(candidate));
    if (candidate.fits()) keep(found_, std::move(candidate));
  }

  // Runs the first decisions for nodes in parallel with the 1-D search if that probably needs no
  // more micro-batches: data parallelism then fits with as few.
  template <typename OneAxis>
  void look_at_nodes_beside(const OneAxis& one_axis) {
    const std::optional<SpmdCandidate>& best = found_.best;
    const bool has_room =
        fitting_step() &&
        static_cast<int64_t>(only_pipeline(best->plan).microbatches.size()) == first_count();
    if (!has_room || starts_.layouts().size() == 1) return one_axis();
    const std::optional<Nanoseconds> to_beat = step_to_beat();
    const std::vector<SpmdStart>& all = starts_.of(1);
    std::vector<SpmdAhead> found(all.size());
    for_each_in_parallel_with(one_axis, all.size(), [&](size_t i, const std::atomic<bool>&) {
      found[i] = decider_.look_ahead(all[i], first_count(), to_beat, {});
    });
    ahead_of_nodes_ = std::move(found);
  }

  std::optional<Nanoseconds> step_to_beat() const {
    const std::optional<Nanoseconds> known = request_.faster_than, own = fitting_step();
    return known && own ? std::min(*known, *own) : known ? known : own;
  }

  // Returns an empty result if none was precomputed.
  SpmdAhead taken(const SpmdStart& start, int64_t microbatches) {
    for (std::vector<SpmdAhead>* all : {&ahead_of_first_, &ahead_of_nodes_})
      for (SpmdAhead& ahead : *all)
        if (ahead.division && ahead.division->start == start && ahead.microbatches == microbatches)
          return std::exchange(ahead, {});
    return {};
  }

  std::optional<SpmdCandidate> decide(SearchResult& known,
                                      SpmdDivision& division,
                                      const SpmdOptions& options) const {
    known.asked.push_back({division.start, options});
    SpmdDecided decided;
    std::vector<SpmdDecided>& ahead = known.ahead.decided;
    if (const auto found = std::ranges::find(ahead, options, &SpmdDecided::options);
        found != ahead.end()) {
      decided = std::move(*found);
      ahead.erase(found);
    } else {
      decided = decider_.decide(division, options);
    }
    if (!decided.plan) return std::nullopt;
    // See spmd_lower_bound(): if C and O alternate, the longer is at least this share.
    if (options.byte_price == 0 && cannot_win(known, decided.bound, 1 + options.overlapped_count))
      return SpmdCandidate{.step = decided.bound, .modelled = decided.bound, .pruned = true};
    SpmdCandidate priced = price(known, std::move(*decided.plan));
    if (priced.left_out) return std::nullopt;
    priced.modelled = decided.modelled;
    return priced;
  }

  // `alone`: no other search runs.
  SearchVerdict search(SearchResult& known,
                       const SpmdStart& start,
                       int64_t microbatches,
                       bool alone) const {
    if (microbatches > 1 && *std::max_element(start.rows.begin(), start.rows.end()) < microbatches)
      return {.fits = true};
    SpmdOptions options;
    options.microbatches = microbatches;
    if (alone && !known.ahead.division)
      known.ahead = decider_.look_ahead(start, microbatches, step_to_beat(), found_.priced);
    if (!known.ahead.division)
      known.ahead.division = std::make_unique<SpmdDivision>(starts_.divide(start, microbatches));
    SpmdDivision& division = *known.ahead.division;
    SearchVerdict ending;
    std::vector<double> too_large;  // overlap weights worth a price
    for (double exposed : kOverlappedCounts) {
      options.overlapped_count = exposed;
      std::optional<SpmdCandidate> found = decide(known, division, options);
      if (found && found->pruned) return {.fits = ending.fits, .cannot_win = true};
      // Saving memory costs time, and so do more micro-batches.
      const bool slow = found && cannot_win(known, found->step);
      ending.cannot_win &= found && (slow || cannot_win(known, found->modelled));
      if (!found) continue;
      const bool ok = found->fits();
      if (!ok && !slow && keep(known, recomputed(known, found->plan))) known.best_options = options;
      if (keep(known, std::move(*found))) known.best_options = options;
      ending.fits |= ok;
      if (!ok && !slow) too_large.push_back(exposed);
    }
    if (ending.cannot_win || too_large.empty()) return ending;
    const SpmdStart memory_counts = even_ ? start : starts_.with_memory(start);
    std::optional<SpmdDivision> roomy;  // only if it differs
    if (memory_counts != start) roomy.emplace(starts_.divide(memory_counts, microbatches));
    for (double exposed : too_large) {
      options.overlapped_count = exposed;
      if (!pay_for_memory(known, roomy ? *roomy : division, options)) break;
    }
    return ending;
  }

  // True if `time / gain` still loses to the best known.
  bool cannot_win(const SearchResult& known, Nanoseconds time, double gain = 1) const {
    const auto is_faster = [&](const std::optional<SpmdCandidate>& other) {
      return other && other->fits() && time / other->step > gain;
    };
    return is_faster(found_.best) || is_faster(known.best) ||
           (request_.faster_than && time / *request_.faster_than > gain);
  }

  // Prices the same decisions with blocks recomputed.
  SpmdCandidate recomputed(SearchResult& known, Plan plan) const {
    only_pipeline(plan).stages[0].recompute = "blocks";
    return price(known, std::move(plan));
  }

  // Finds the smallest price per byte with a fit, unless fits are useless. Returns false if not
  // even the least-memory decisions fit.
  bool pay_for_memory(SearchResult& known, SpmdDivision& division, SpmdOptions options) const {
    return find_price(known.last_price, [&](double price) {
      options.byte_price = price;
      std::optional<SpmdCandidate> found = decide(known, division, options);
      AtPrice at_price{.fits = found && found->fits(), .slow = false};
      at_price.slow = found && !at_price.fits && cannot_win(known, found->step);
      if (found) keep(known, std::move(*found));
      return at_price;
    });
  }

  const Request& request_;
  const bool even_;  // all devices get equal shares
  const SpmdStarts starts_;
  const SpmdDecider decider_;
  const GraphAnalysis& analysis_;
  const Prepared& prepared_;
  const std::string& coupling_;  // not empty: one micro-batch only
  SearchResult found_;
  std::vector<std::string_view> asked_again_;  // strategies whose first try does not fit
  std::vector<SpmdAhead> ahead_of_first_, ahead_of_nodes_;
  bool hopeless_ = false;  // no plan fits
};

}  // namespace

Outcome hap(const Request& request) { return Synthesis(request, false).run(); }
Outcome hap_even(const Request& request) { return Synthesis(request, true).run(); }

Nanoseconds spmd_lower_bound(const Request& request) {
  return Synthesis(request, false).lower_bound();
}

}  // namespace medley
