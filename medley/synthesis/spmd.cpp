#include "medley/synthesis/spmd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/parallel.h"
#include "medley/plan/apportion.h"
#include "medley/program/lower.h"
#include "medley/sharding/coupling.h"
#include "medley/sim/simulate.h"
#include "medley/synthesis/at_once.h"
#include "medley/synthesis/data_parallel.h"
#include "medley/synthesis/fit.h"
#include "medley/synthesis/mesh_layouts.h"
#include "medley/synthesis/node_levels.h"
#include "medley/synthesis/price_search.h"
#include "medley/synthesis/ratio_problem.h"
#include "medley/synthesis/shorten.h"

namespace medley {
namespace {

constexpr const char* kSpeed = "speed";

constexpr int kMostRounds = 3;  // in which decisions and ratios take turns
constexpr int64_t kFewMicrobatches = 64;

// What needs less memory is rarely faster, and hardly ever by more than this.
constexpr double kMostGain = 1.25;
constexpr double kWorthNodes = 1.02;

struct Candidate {
  Plan plan{};
  Program program{};
  Nanoseconds step{};
  double missing_bytes = 0;   // on all devices
  Nanoseconds modelled{};     // what the search took for the step
  bool of_any_count = false;  // nor do more micro-batches make it fit
  // No decisions of its division take less than what is to be beaten: this is not priced.
  bool beaten = false;
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
struct SearchPoint {
  Start start;
  SpmdOptions options;
  bool operator==(const SearchPoint&) const = default;
};

// What some searches have found and know of each other.
struct SearchResult {
  std::map<std::string, Candidate> priced;  // by meaning, without plans and programs
  std::vector<SearchPoint> asked;
  std::optional<double> last_price;  // of prices per byte, the last at which something did fit
  std::optional<Candidate> best;
  std::optional<SpmdOptions> best_options;  // of the search for it; nothing: data parallel
};

bool keep(SearchResult& found, Candidate candidate) {
  const bool better = !candidate.beaten && (!found.best || candidate.better_than(*found.best));
  if (better) found.best = std::move(candidate);
  return better;
}

// Of the searches from one start, or from several.
struct SearchVerdict {
  bool fits = false;  // some plan, without a price on memory
  // No plan is worth a price on memory, nor a search with more micro-batches.
  bool cannot_win = true;
};

class Synthesis {
 public:
  Synthesis(const Request& request, bool even)
      : request_(request),
        even_(even),
        layouts_(mesh_layouts(request.cluster, devices_of(request))),
        analysis_(*request.analysis),
        prepared_(*analysis_.prepared),
        factors_(*analysis_.factors),
        coupling_(analysis_.coupling) {
    for (const MeshLayout& layout : layouts_)
      speeds_.push_back(speeds_of(request_, layout.devices));
  }

  Outcome run() {
    if (!request_.faster_than || has_room_for_replicas(request_)) consider_data_parallel();
    search_one_axis();
    std::optional<Candidate>& best = found_.best;
    if (best && best->fits() && !even_) {
      SpmdOptions options = found_.best_options.value_or(SpmdOptions{});
      options.microbatches = static_cast<int64_t>(only_pipeline(best->plan).microbatches.size());
      spread_over_nodes(options);
      alternate(options);
    }
    // Who has a plan to beat looks there for no memory that one axis lacks.
    if (!hopeless_ && (fitting_step() || !request_.faster_than)) search_nodes();
    if (!best) return request_.ask(even_ ? "data-parallel-even" : "data-parallel-proportional");
    shorten(only_pipeline(best->plan).stages[0], prepared_.names);
    if (!best->fits()) return Infeasible{explain_misfit(best->plan, request_)};
    best->plan.strategy = request_.strategy;
    drop_unused_parts(best->plan);
    if (even_) return std::move(best->plan);
    return at_once_if_faster(request_, best->plan, std::move(best->program));
  }

  // The least cost of the model when every device counts by its speed; of the divisions that the
  // search starts from or spreads over nodes the cheapest, since they may balance the links that
  // rows by speed do not.
  Nanoseconds lower_bound() {
    std::vector<Start> all;
    for (size_t layout = 0; layout < layouts_.size(); ++layout)
      for (Start& start : starts(layout)) all.push_back(std::move(start));
    for (const std::vector<double>& shares :
         shares_of_levels(request_.cluster, layouts_[0].devices, speeds_[0]))
      all.push_back({0, apportion(request_.global_batch, shares), shares, {}});
    std::vector<Nanoseconds> bounds(all.size());
    for_each_in_parallel(all.size(), [&](size_t i) { bounds[i] = lower_bound(all[i]); });
    return *std::ranges::min_element(bounds);
  }

 private:
  // With more and more micro-batches while that is needed to fit, or helps.
  void search_one_axis() {
    std::vector<Start> all = starts(0);
    bool gained_before = false;
    for (int64_t count = first_count(), factor = 2;; count *= factor) {
      const std::optional<Nanoseconds> before = fitting_step();
      const SearchVerdict ending =
          search(all, count, fmt::format("{} with {} micro-batches", request_.strategy, count));
      const bool gained = fitting_step() && (!before || *fitting_step() < *before);
      if (ending.cannot_win || (ending.fits && (!gained || count == 1))) break;
      const double missing = found_.best ? found_.best->missing_bytes : 0;
      factor = std::min(times_microbatches(missing, request_.cluster, layouts_[0].devices),
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

  // Whether from any start there is room for what holds least, in as many micro-batches as there
  // may be, or it takes long to know. If not, no price and no number in between has room either.
  bool anything_fits(const std::vector<Start>& all) {
    report(request_, request_.strategy + ": what holds least", all.size(), all.size());
    for (const Start& start : all) {
      const int64_t most = std::ranges::max(start.rows);
      if (may_double(kFewMicrobatches) && most > kFewMicrobatches) return true;
      SpmdOptions options;
      options.microbatches = first_count();
      options.byte_price = kOnlyBytes;
      while (may_double(options.microbatches) && 2 * options.microbatches <= most)
        options.microbatches *= 2;
      std::optional<Candidate> least = decide_at(even_ ? start : with_memory(start), options);
      if (!least) continue;
      if (!least->fits()) keep(found_, recomputed(found_, least->plan));
      keep(found_, std::move(*least));
      if (fitting_step()) return true;
    }
    return false;
  }

  // A search takes ten times as long as one of one axis, so that it is for as many micro-batches as
  // are best there, and over where there is no memory for any of its plans.
  void search_nodes() {
    if (layouts_.size() == 1) return;
    const std::optional<Candidate>& best = found_.best;
    const int64_t count =
        best ? static_cast<int64_t>(only_pipeline(best->plan).microbatches.size()) : first_count();
    std::vector<Start> all = starts(1);
    search(all, count, request_.strategy + " on nodes");
  }

  std::optional<Nanoseconds> fitting_step() const {
    return found_.best && found_.best->fits() ? std::optional(found_.best->step) : std::nullopt;
  }

  // From all starts, on all cores, but of one axis from the first one at first where nobody knows
  // yet what price on memory is enough. What is found does not depend on the number of cores.
  // Removes those from which nothing can win.
  SearchVerdict search(std::vector<Start>& all, int64_t microbatches, const std::string& what) {
    SearchVerdict ending;
    std::vector<Start> left;
    for (size_t begin = 0; begin < all.size();) {
      const bool one_first = begin == 0 && !found_.last_price && all[0].layout == 0;
      const size_t end = one_first ? 1 : all.size();
      report(request_, what, end, all.size());
      std::vector<SearchResult> found(end - begin);
      std::vector<SearchVerdict> endings(found.size());
      for (SearchResult& each : found) each.last_price = found_.last_price;
      for_each_in_parallel(found.size(), [&](size_t i) {
        endings[i] = search(found[i], all[begin + i], microbatches);
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
    found_.priced.merge(other.priced);
    found_.asked.insert(found_.asked.end(), other.asked.begin(), other.asked.end());
    found_.last_price = other.last_price;
    if (!other.best || !keep(found_, std::move(*other.best))) return;
    if (other.best_options) found_.best_options = other.best_options;
  }

  // With the lengths that communications have from this start.
  Nanoseconds lower_bound(const Start& start) const {
    SpmdPricing pricing;
    const std::vector<double>& speeds = speeds_[start.layout];
    const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    for (double each : speeds) pricing.weights.push_back(each / sum);
    Division division = divide(start, first_count(), std::move(pricing));
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
    only_pipeline(plan).stages[0].mesh = mesh_of(layout, request_.cluster);
    if (!are_equal(start.shares)) plan.parts.push_back({kSpeed, {}, start.shares});
    if (!start.memory.empty()) plan.parts.push_back({std::string(kMemoryPart), {}, start.memory});
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
    const Pipeline& pipeline = only_pipeline(plan);
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
  Candidate price(SearchResult& found, Plan plan) const {
    const std::string meaning = meaning_of(plan);
    for (const SearchResult* known : {&found_, &std::as_const(found)})
      if (const auto priced = known->priced.find(meaning); priced != known->priced.end()) {
        Candidate again = priced->second;
        again.plan = std::move(plan);
        return again;
      }
    Candidate candidate = price_anew(plan);
    found.priced[meaning] = {.step = candidate.step,
                             .missing_bytes = candidate.missing_bytes,
                             .of_any_count = candidate.of_any_count};
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
    candidate.program = lower(analysis_, plan, request_.cluster);
    candidate.step = medley::price(request_, candidate.program);
    if (const auto misfit = find_misfit(plan, candidate.program, request_)) {
      candidate.missing_bytes = misfit->bytes();
      candidate.of_any_count = misfit->of_any_count;
    }
    return candidate;
  }

  // The best decisions with the shares of every level, and other decisions for the best of these:
  // the ratios that follow know of devices, not of the ports that those of a node have in common.
  void spread_over_nodes(SpmdOptions& options) {
    const std::vector<std::vector<double>> levels =
        shares_of_levels(request_.cluster, layouts_[0].devices, speeds_[0]);
    if (levels.empty() || uneven_ports(simulate(found_.best->program, *request_.costs),
                                       request_.costs->topology()) < kWorthLevels)
      return;
    const Nanoseconds before = found_.best->step;
    Plan plan = found_.best->plan;
    drop_unused_parts(plan);
    if (std::ranges::count(plan.parts, kSpeed, &Part::name) == 0) {  // all is even
      const std::vector<double>& shares = levels[levels.size() / 2];
      const std::vector<int64_t> rows = apportion(request_.global_batch, shares);
      std::optional<Candidate> uneven = decide_at({0, rows, shares, {}}, options);
      if (!uneven) return;
      plan = uneven->plan;
      keep(found_, std::move(*uneven));
    }
    std::vector<SearchResult> found(levels.size());
    for_each_in_parallel(found.size(), [&](size_t i) {
      Plan spread = with_shares(plan, levels[i]);
      Candidate first = price(found[i], spread);
      const bool lacks_memory = first.step < before && !first.fits();
      keep(found[i], std::move(first));
      if (lacks_memory && halve_microbatches(spread))
        keep(found[i], price(found[i], std::move(spread)));
    });
    for (SearchResult& each : found) add(std::move(each));
    if (found_.best->step == before) return;
    const Plan& spread = found_.best->plan;
    options.microbatches = static_cast<int64_t>(only_pipeline(spread).microbatches.size());
    const Start start = start_of(spread);
    if (is_asked(start, options)) return;
    if (std::optional<Candidate> decided = decide_at(start, options))
      keep(found_, std::move(*decided));
  }

  // Returns whether it could: there may be twice as many, and rows are divided.
  bool halve_microbatches(Plan& plan) const {
    const auto& microbatches = only_pipeline(plan).microbatches;
    const auto count = static_cast<int64_t>(microbatches.size());
    if (!may_double(count) || microbatches[0].lengths.empty()) return false;
    plan = with_rows(plan, step_rows(plan), 2 * count);
    return true;
  }

  // Whether there may be twice as many micro-batches.
  bool may_double(int64_t count) const {
    return request_.microbatches == 0 && coupling_.empty() && 2 * count <= request_.global_batch;
  }

  bool is_asked(const Start& start, const SpmdOptions& options) const {
    return std::ranges::count(found_.asked, SearchPoint{start, options}) > 0;
  }

  // Nothing: no decisions are allowed, or none can win.
  std::optional<Candidate> decide_at(const Start& start, const SpmdOptions& options) {
    Division division = divide(start, options.microbatches);
    std::optional<Candidate> found = decide(found_, division, options);
    return found && found->beaten ? std::nullopt : std::move(found);
  }

  // Other ratios for the best decisions, then other decisions for these ratios, while it helps.
  void alternate(const SpmdOptions& options) {
    for (int round = 0; round < kMostRounds; ++round) {
      const Candidate& best = *found_.best;
      const auto ratios = best_ratios(ratio_problem(best.plan, best.program, *request_.costs));
      const auto* found = std::get_if<Ratios>(&ratios);
      if (!found) return;
      Candidate divided = price(found_, with_ratios(best.plan, found->shares));
      const Start start = start_of(divided.plan);
      const bool helped = keep(found_, std::move(divided));
      bool gained = false;
      if (!is_asked(start, options)) {
        std::optional<Candidate> decided = decide_at(start, options);
        gained = decided && keep(found_, std::move(*decided));
      }
      if (!helped && !gained) return;
    }
  }

  Start start_of(const Plan& plan) const {
    Start start{0, std::vector<int64_t>(layouts_[0].devices.size(), 0), speeds_[0], {}};
    for (const Microbatch& microbatch : only_pipeline(plan).microbatches)
      for (size_t d = 0; d < microbatch.lengths.size(); ++d) start.rows[d] += microbatch.lengths[d];
    for (const Part& part : plan.parts)
      (part.name == kSpeed ? start.shares : start.memory) = part.shares;
    return start;
  }

  void consider_data_parallel() {
    const std::vector<int>& devices = layouts_[0].devices;
    for (const std::string_view strategy : {"data-parallel-even", "data-parallel-proportional"}) {
      const bool evenly = strategy == "data-parallel-even";
      if (even_ && !evenly) continue;
      if (coupling_.empty() || first_count() == 1) {
        // What the strategy tries first: if that fits it is the strategy's answer.
        const std::vector<int64_t> rows =
            evenly ? even_rows(request_, devices) : proportional_rows(request_, devices);
        Candidate first = price(found_, empty_plan(request_, devices, rows, first_count()));
        if (first.fits()) {
          keep(found_, std::move(first));
          continue;
        }
      }
      Outcome outcome = request_.ask(strategy);
      if (auto* found = std::get_if<Plan>(&outcome)) keep(found_, price(found_, std::move(*found)));
    }
  }

  std::optional<Candidate> decide(SearchResult& known,
                                  Division& division,
                                  const SpmdOptions& options) const {
    known.asked.push_back({division.start, options});
    const SpmdProblem problem(prepared_, division.catalogue, options);
    const std::optional<PbqpSolution> found = solve(problem.pbqp(), search_options());
    if (!found) return std::nullopt;
    // See spmd_lower_bound(): of C and O that take turns, the longer is no part of less.
    const Nanoseconds bound{found->lower_bound / kTicksPerNanosecond};
    if (options.byte_price == 0 && cannot_win(known, bound, 1 + options.overlapped_count))
      return Candidate{.step = bound, .modelled = bound, .beaten = true};
    Plan plan = division.outline;
    Stage& stage = only_pipeline(plan).stages[0];
    stage = problem.stage(found->choices, stage.mesh);
    // As the plan will be in the end: rows that nothing is divided by would divide what is left
    // open. With one axis, ratios and other decisions follow, which want all parts.
    if (layouts_[division.start.layout].shape.size() > 1) drop_unused_parts(plan);
    Candidate priced = price(known, std::move(plan));
    priced.modelled = {found->cost / kTicksPerNanosecond};
    return priced;
  }

  SearchVerdict search(SearchResult& known, const Start& start, int64_t microbatches) const {
    if (microbatches > 1 && *std::max_element(start.rows.begin(), start.rows.end()) < microbatches)
      return {.fits = true};
    SpmdOptions options;
    options.microbatches = microbatches;
    Division division = divide(start, microbatches);
    SearchVerdict ending;
    std::vector<double> too_large;  // with these counts of what is overlapped, and worth a price
    for (double exposed : kOverlappedCounts) {
      options.overlapped_count = exposed;
      std::optional<Candidate> found = decide(known, division, options);
      if (found && found->beaten) return {.fits = ending.fits, .cannot_win = true};
      // Holding less takes longer, and so do more micro-batches.
      const bool slow = found && cannot_win(known, found->step, most_gain(start));
      ending.cannot_win &= found && (slow || cannot_win(known, found->modelled));
      if (!found) continue;
      const bool ok = found->fits();
      if (!ok && !slow && keep(known, recomputed(known, found->plan))) known.best_options = options;
      if (keep(known, std::move(*found))) known.best_options = options;
      ending.fits |= ok;
      if (!ok && !slow) too_large.push_back(exposed);
    }
    if (ending.cannot_win || too_large.empty()) return ending;
    const Start memory_counts = even_ ? start : with_memory(start);
    std::optional<Division> roomy;  // if it differs
    if (memory_counts != start) roomy.emplace(divide(memory_counts, microbatches));
    for (double exposed : too_large) {
      options.overlapped_count = exposed;
      if (!pay_for_memory(known, roomy ? *roomy : division, options)) break;
    }
    return ending;
  }

  // Of a plan that holds less over one that holds more. On nodes, where a search takes ten times as
  // long, a plan has to be faster as it is by as much as is worth that.
  static double most_gain(const Start& start) {
    return start.layout == 0 ? kMostGain : 1 / kWorthNodes;
  }

  // True if `time / gain` still loses to the best known.
  bool cannot_win(const SearchResult& known, Nanoseconds time, double gain = 1) const {
    const auto is_faster = [&](const std::optional<Candidate>& other) {
      return other && other->fits() && time / other->step > gain;
    };
    return is_faster(found_.best) || is_faster(known.best) ||
           (request_.faster_than && time / *request_.faster_than > gain);
  }

  // The same decisions, blocks computed again rather than kept.
  Candidate recomputed(SearchResult& known, Plan plan) const {
    only_pipeline(plan).stages[0].recompute = "blocks";
    return price(known, std::move(plan));
  }

  // With the smallest price per byte at which the plan fits, unless what fits is of no use. Returns
  // false if not even what holds least fits.
  bool pay_for_memory(SearchResult& known, Division& division, SpmdOptions options) const {
    return find_price(known.last_price, [&](double price) {
      options.byte_price = price;
      std::optional<Candidate> found = decide(known, division, options);
      AtPrice at_price{.fits = found && found->fits(), .slow = false};
      at_price.slow =
          found && !at_price.fits && cannot_win(known, found->step, most_gain(division.start));
      if (found) keep(known, std::move(*found));
      return at_price;
    });
  }

  const Request& request_;
  const bool even_;  // all devices get equal shares
  const std::vector<MeshLayout> layouts_;
  const GraphAnalysis& analysis_;
  const Prepared& prepared_;
  const Factors& factors_;
  const std::string& coupling_;              // not empty: one micro-batch only
  std::vector<std::vector<double>> speeds_;  // [layout][device]
  SearchResult found_;
  bool hopeless_ = false;  // there is no memory for any plan
};

}  // namespace

Outcome hap(const Request& request) { return Synthesis(request, false).run(); }
Outcome hap_even(const Request& request) { return Synthesis(request, true).run(); }

Nanoseconds spmd_lower_bound(const Request& request) {
  return Synthesis(request, false).lower_bound();
}

}  // namespace medley
