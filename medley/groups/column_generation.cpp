#include "medley/groups/column_generation.h"

#include <algorithm>
#include <optional>

#include "medley/base/parallel.h"

namespace medley {
namespace {

constexpr double kPeriodStep = 1.4;  // factor between searched periods
constexpr double kWorthMore = 1e-3;  // least relative excess worth of a column over its rows
// Margin below the rows of a step for the worth of all devices in an exclusion, as a share. It
// exceeds the rounding of prices to integers.
constexpr double kSafety = 1e-6;
// Worth of a pipeline's rows as an integer.
constexpr int64_t kWhole = int64_t{1} << 40;
constexpr int kStepBits = 12;         // relative resolution of steps, in bits
constexpr size_t kParts = 4;          // of a proof per choice, each for a range of micro-batches
constexpr size_t kOfEachChoice = 12;  // failing chains of a proof per search

// Returns the integer price of a device, at most `of`, the excluded cost of a chain.
int64_t whole_price(double price, int64_t of) {
  return price >= static_cast<double>(of) ? of : static_cast<int64_t>(price);
}

}  // namespace

ColumnGeneration::ColumnGeneration(std::vector<int> devices, int64_t rows, size_t pipelines)
    : devices_(std::move(devices)),
      rows_(rows),
      least_columns_(pipelines > 1 ? static_cast<int>(pipelines) : 0) {}

void ColumnGeneration::add_choice(int64_t rows, const Chains& chains) {
  choices_.push_back({rows, &chains});
}

double ColumnGeneration::worth(const std::vector<int>& devices,
                               const std::vector<double>& prices) const {
  double sum = 0;
  for (size_t k = 0; k < devices.size(); ++k) sum += prices[k] * devices[k];
  return sum;
}

double ColumnGeneration::rows_in(const PipelineColumn& column, Nanoseconds step) const {
  if (step < column.fill) return 0;
  const double rows = static_cast<double>(column.rows) * (1 + (step - column.fill) / column.period);
  return std::min(rows, static_cast<double>(rows_));
}

bool ColumnGeneration::add(PipelineColumn column) {
  for (const PipelineColumn& known : columns_)
    if (known.rows == column.rows && known.devices == column.devices && known.fill <= column.fill &&
        known.period <= column.period)
      return false;
  columns_.push_back(std::move(column));
  return true;
}

// Returns the chain of most worth at these prices, for each choice and period.
std::vector<PipelineColumn> ColumnGeneration::price(Nanoseconds step,
                                                    const std::vector<double>& prices) {
  struct Trial {
    size_t choice;
    int64_t period;
    std::optional<PricedChain> found;
  };
  std::vector<Trial> trials;
  for (size_t c = 0; c < choices_.size(); ++c) {
    const int64_t longest = std::min(step.value, choices_[c].chains->longest_period().value);
    const double shortest = static_cast<double>(choices_[c].rows) / static_cast<double>(rows_) *
                            static_cast<double>(step.value);
    for (double period = static_cast<double>(longest); period >= shortest / 2 && period >= 1;
         period /= kPeriodStep)
      trials.push_back({c, static_cast<int64_t>(period), {}});
  }
  for_each_in_parallel(trials.size(), [&](size_t i) {
    Trial& trial = trials[i];
    const Choice& choice = choices_[trial.choice];
    Chains::Prices whole;
    const int64_t below = step.value + trial.period;
    const double time_of_row = static_cast<double>(trial.period) / static_cast<double>(choice.rows);
    for (const double price : prices) whole.push_back(whole_price(price * time_of_row, below));
    trial.found = choice.chains->at_period({trial.period}, whole, below);
  });
  searches_ += static_cast<int64_t>(trials.size());
  std::vector<PipelineColumn> found;
  for (Trial& trial : trials) {
    if (!trial.found) continue;
    PipelinePlan& plan = trial.found->plan;
    const Nanoseconds period = std::max(plan.period, Nanoseconds{1});
    const Nanoseconds fill = plan.predicted - plan.period * (plan.microbatches - 1);
    found.push_back({trial.choice,
                     std::move(plan),
                     std::move(trial.found->devices),
                     choices_[trial.choice].rows,
                     fill,
                     period});
  }
  return found;
}

double ColumnGeneration::generate(Nanoseconds step, const GenerationLimits& limits) {
  std::vector<double> smooth;
  double rows = 0;
  const int64_t most = searches_ + limits.searches;
  for (int round = 0; round < limits.rounds && searches_ < most; ++round) {
    if (limits.is_over && limits.is_over()) break;
    std::vector<MasterColumn> all;
    for (const PipelineColumn& column : columns_)
      all.push_back({column.devices, rows_in(column, step)});
    const MasterSolution solution = solve_master(devices_, all);
    rows = solution.rows;
    // Prices oscillate while there are few columns: they are averaged with the previous ones.
    if (round == 0) smooth = solution.prices;
    for (size_t k = 0; k < smooth.size(); ++k) smooth[k] = (smooth[k] + solution.prices[k]) / 2;
    const auto look = [&](const std::vector<double>& prices) {
      bool more = false;
      for (PipelineColumn& column : price(step, prices))
        if (rows_in(column, step) * (1 - kWorthMore) > worth(column.devices, solution.prices))
          more |= add(std::move(column));
      return more;
    };
    if (look(smooth)) continue;
    smooth = solution.prices;
    if (!look(smooth)) break;
  }
  return rows;
}

int64_t ColumnGeneration::most_rows(const Proof& proof, Nanoseconds step) const {
  const Choice& choice = choices_[proof.choice];
  return std::min(rows_,
                  choice.rows * choice.chains->most_microbatches(proof.plan, step, closeness_));
}

MasterSolution ColumnGeneration::master_of_proofs(Nanoseconds step) const {
  std::vector<MasterColumn> all;
  // Chains without rows in the step are no pipelines of it.
  for (const Proof& proof : proofs_)
    if (const int64_t rows = most_rows(proof, step); rows > 0)
      all.push_back({proof.devices, static_cast<double>(rows)});
  return solve_master(devices_, all, least_columns_);
}

// Proves, for a part of all numbers of micro-batches, that no chain of the choice does more rows in
// the step than its devices are worth; or returns chains that do. Small numbers come first. A
// search for B micro-batches finds the least worth C. All numbers up to b B = C less the price of a
// column are then proved.
ColumnGeneration::Walk ColumnGeneration::walk(size_t choice,
                                              size_t part,
                                              Nanoseconds step,
                                              const MasterSolution& prices) const {
  const Choice& own = choices_[choice];
  const int64_t all = (rows_ + own.rows - 1) / own.rows;
  const int64_t before = all * static_cast<int64_t>(part) / kParts;
  const int64_t most = all * (static_cast<int64_t>(part) + 1) / kParts;
  Walk walk;
  double first = 0;
  int64_t ahead = std::max<int64_t>(1, all / 8);
  for (int64_t count = before + 1; count <= most;) {
    const int64_t last = std::min(most, count + ahead);
    const auto rows_of = [&](int64_t microbatches) {
      return static_cast<double>(std::min(rows_, microbatches * own.rows)) + prices.column_price;
    };
    Chains::Prices whole;
    for (const double price : prices.prices)
      whole.push_back(whole_price(price / rows_of(last) * static_cast<double>(kWhole), kWhole));
    const std::optional<PricedChain> found =
        own.chains->under_any_schedule(count, step, whole, kWhole, closeness_, &first);
    ++walk.searches;
    if (!found) {
      count = last + 1;
      ahead *= 2;
      continue;
    }
    Proof proof{choice, found->plan, found->devices};
    const double worth = this->worth(proof.devices, prices.prices) - prices.column_price;
    if (const int64_t rows = most_rows(proof, step); static_cast<double>(rows) > worth) {
      walk.found.push_back(std::move(proof));
      if (walk.found.size() == kOfEachChoice / kParts) break;
      count = std::max(count, rows / own.rows) + 1;
      continue;
    }
    if (worth >= static_cast<double>(rows_)) break;
    ahead = std::max<int64_t>(1, ahead / 2);
    const auto shown = static_cast<int64_t>(worth / static_cast<double>(own.rows));
    count = std::max(count, shown) + 1;
  }
  return walk;
}

ColumnGeneration::Verdict ColumnGeneration::judge(Nanoseconds step,
                                                  int64_t most_searches,
                                                  const GenerationLimits& limits) {
  while (searches_ < most_searches) {
    if (limits.is_over && limits.is_over()) break;
    MasterSolution solution = master_of_proofs(step);
    const double enough = static_cast<double>(rows_) * (1 - 2 * kSafety);
    if (solution.rows >= enough) return Verdict::kLongEnough;
    // Any prices at which all devices are worth less than the rows of a step suffice.
    const double paid = worth(devices_, solution.prices) - least_columns_ * solution.column_price;
    const double scale = enough / std::max(paid, enough * 1e-3);
    for (double& price : solution.prices) price *= scale;
    solution.column_price *= scale;
    std::vector<Walk> walks(choices_.size() * kParts);
    for_each_in_parallel(
        walks.size(), [&](size_t i) { walks[i] = walk(i / kParts, i % kParts, step, solution); });
    bool proved = true;
    for (Walk& each : walks) {
      searches_ += each.searches;
      proved &= each.found.empty();
      proofs_.insert(proofs_.end(), each.found.begin(), each.found.end());
    }
    if (proved) return Verdict::kTooShort;
  }
  return Verdict::kUnknown;
}

// Returns the shortest step in the interval in which fractions of the known chains do all rows.
Nanoseconds ColumnGeneration::least_of_proofs(Nanoseconds low, Nanoseconds high) const {
  while ((high - low).value > std::max<int64_t>(1, high.value >> kStepBits)) {
    const Nanoseconds middle = low + (high - low) / 2;
    (master_of_proofs(middle).rows >= static_cast<double>(rows_) ? high : low) = middle;
  }
  return high;
}

Nanoseconds ColumnGeneration::bound(Nanoseconds long_enough,
                                    Closeness closeness,
                                    const GenerationLimits& limits) {
  closeness_ = closeness;
  const int64_t most = searches_ + limits.searches;
  if (proofs_.empty())
    for (const PipelineColumn& column : columns_)
      proofs_.push_back({column.choice, column.plan, column.devices});
  Nanoseconds too_short, open = long_enough;
  for (int step = 0; step < limits.steps && searches_ < most; ++step) {
    if (limits.is_over && limits.is_over()) break;
    open = least_of_proofs(too_short, open);
    const double closest = static_cast<double>(open.value) * (1 - limits.closer);
    if (closest <= static_cast<double>(too_short.value)) break;
    const double between =
        static_cast<double>(open.value) * (1 - limits.closer / (limits.far ? 1 : 2));
    const Nanoseconds next{std::min(open.value - 1, static_cast<int64_t>(between) + limits.far)};
    if (next <= too_short) break;
    switch (judge(next, most, limits)) {
      case Verdict::kTooShort:
        too_short = next;
        break;
      case Verdict::kLongEnough:
        open = next;
        break;
      case Verdict::kUnknown:
        return too_short;
    }
  }
  return too_short;
}

}  // namespace medley
