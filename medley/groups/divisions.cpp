#include "medley/groups/divisions.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/groups/master.h"

namespace medley {
namespace {

// Returns the least step for which the monotone `enough` is true; above `longest` if there is none.
Nanoseconds least_step(const std::function<bool(Nanoseconds)>& enough,
                       int64_t longest = kLongestStep) {
  int64_t low = 0, high = 1;
  for (; !enough({high}); high = std::min(2 * high, longest)) {
    if (high >= longest) return {kLongestStep + 1};
    low = high;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (enough({middle}) ? high : low) = middle;
  }
  return {high};
}

// Numbers amounts of units in a mixed radix: smaller amounts have smaller numbers.
class Numbers {
 public:
  explicit Numbers(const Units& all) : all_(all) {
    for (const int units : all) {
      strides_.push_back(count_);
      count_ = std::min(kMany, count_ * (at(units) + 1));
    }
  }
  // Above this, numbers are invalid.
  static constexpr size_t kMany = size_t{1} << 32;
  size_t count() const { return count_; }
  size_t number(const Units& units) const {
    size_t number = 0;
    for (size_t k = 0; k < units.size(); ++k) number += at(units[k]) * strides_[k];
    return number;
  }
  Units units(size_t number) const {
    Units units;
    for (size_t k = 0; k < all_.size(); ++k)
      units.push_back(static_cast<int>(number / strides_[k] % (at(all_[k]) + 1)));
    return units;
  }

 private:
  const Units all_;
  std::vector<size_t> strides_;
  size_t count_ = 1;
};

bool fits(const Units& units, const Units& into) {
  return std::ranges::equal(units, into, std::ranges::less_equal{});
}

// Depth-first search for the best set of columns, for each number of pipelines. The most that the
// remaining units can do is exact for few amounts; else it is their worth at the prices of the
// linear program.
class Search {
 public:
  explicit Search(const DivisionRequest& request) : request_(request), numbers_(request.units) {
    std::map<Units, std::vector<int>> columns;
    for (size_t c = 0; c < request.columns.size(); ++c)
      if (fits(request.columns[c].units, request.units))
        columns[request.columns[c].units].push_back(static_cast<int>(c));
    for (auto& [units, own] : columns) amounts_.push_back({units, std::move(own)});
    if (numbers_.count() > kMostNumbers) return;
    for (size_t n = 1; n < numbers_.count(); ++n)
      for (size_t a = 0; a < amounts_.size(); ++a)
        if (const Units all = numbers_.units(n); fits(amounts_[a].units, all))
          parts_.push_back({n, numbers_.number(amounts_[a].units), a});
  }

  std::vector<Division> run() {
    for (size_t count = request_.pipelines; count <= request_.most_pipelines; ++count) {
      pipelines_ = count;
      // Longer steps do not matter.
      const int64_t longest = most_steps();
      const Nanoseconds least = least_step([&](Nanoseconds step) { return exists(step); }, longest);
      if (least.value > longest) continue;
      if (best_.value == 0 || least < best_) best_ = least;
      find_within(least);
      if (request_.slower > 1) find_within({most_steps()});
    }
    std::erase_if(found_, [&](const Division& each) { return each.step.value > most_steps(); });
    std::ranges::stable_sort(found_, [](const Division& a, const Division& b) {
      return std::pair(a.step, a.columns.size()) < std::pair(b.step, b.columns.size());
    });
    if (found_.size() > request_.divisions) found_.resize(request_.divisions);
    return std::move(found_);
  }

 private:
  static constexpr size_t kMostNumbers = 512;
  static constexpr int64_t kNone = -1;
  struct Amount {
    Units units;
    std::vector<int> columns;
  };
  // One amount among `n` units.
  struct Part {
    size_t n, number, amount;
  };

  bool is_exact() const { return numbers_.count() <= kMostNumbers; }

  // Returns the limit of steps of returned divisions, as far as known.
  int64_t most_steps() const {
    if (best_.value == 0) return kLongestStep;
    return std::max(best_.value,
                    static_cast<int64_t>(static_cast<double>(best_.value) * request_.slower));
  }

  int64_t rows_of(int column, Nanoseconds step) const {
    return rows_in(request_.columns[at(column)], step, pipelines_);
  }

  int column_of(size_t amount, Nanoseconds step) const {
    return *std::ranges::max_element(
        amounts_[amount].columns, {}, [&](int c) { return rows_of(c, step); });
  }

  // Computes the rows of each amount in a step, and the most that others do on the rest.
  void look_at(Nanoseconds step) {
    rows_.assign(amounts_.size(), 0);
    for (size_t a = 0; a < amounts_.size(); ++a) rows_[a] = rows_of(column_of(a, step), step);
    if (!is_exact()) return find_prices();
    most_.assign(pipelines_ + 1, std::vector<int64_t>(numbers_.count(), kNone));
    most_[0].assign(numbers_.count(), 0);
    for (const auto& [n, number, amount] : parts_) {
      if (rows_[amount] == 0) continue;
      for (size_t count = 1; count <= pipelines_; ++count)
        if (const int64_t others = most_[count - 1][n - number]; others != kNone)
          most_[count][n] = std::max(most_[count][n], rows_[amount] + others);
    }
  }

  void find_prices() {
    std::vector<MasterColumn> columns;
    for (size_t a = 0; a < amounts_.size(); ++a)
      columns.push_back({amounts_[a].units, static_cast<double>(rows_[a])});
    prices_ = solve_master(request_.units, columns).prices;
  }

  double worth(const Units& units) const {
    double sum = 0;
    for (size_t k = 0; k < units.size(); ++k) sum += prices_[k] * units[k];
    return sum;
  }

  // Returns the most rows of `pipelines` on some units; kNone if not so many fit.
  int64_t most_rows(size_t pipelines, const Units& units) const {
    if (is_exact()) return most_[pipelines][numbers_.number(units)];
    return static_cast<int64_t>(worth(units) * (1 + kPrecision));
  }

  // Returns whether a division does all rows in the step; for many amounts, whether one was found.
  bool exists(Nanoseconds step) {
    look_at(step);
    if (most_rows(pipelines_, request_.units) < request_.rows) return false;
    if (is_exact()) return true;
    start(true);
    return done_;
  }

  // Adds divisions that do all rows in the step.
  void find_within(Nanoseconds step) {
    look_at(step);
    start(false);
  }

  // Tries amounts with most rows first, or most of their worth. `one`: stops at the first, which is
  // not added.
  void start(bool one) {
    order_.clear();
    for (size_t a = 0; a < amounts_.size(); ++a)
      if (rows_[a] > 0) order_.push_back(a);
    std::ranges::stable_sort(order_, std::ranges::greater{}, [&](size_t a) {
      const auto rows = static_cast<double>(rows_[a]);
      return is_exact() ? rows : rows / (worth(amounts_[a].units) + kPrecision);
    });
    visits_ = 0;
    one_ = one;
    done_ = false;
    std::vector<size_t> chosen;
    extend(chosen, 0, request_.units, 0);
  }

  void extend(std::vector<size_t>& chosen, size_t next, const Units& left, int64_t rows) {
    if (done_ || ++visits_ > request_.most_visits) return;
    const size_t missing = pipelines_ - chosen.size();
    if (missing == 0) {
      if (rows < request_.rows) return;
      done_ = one_;
      if (!one_) add(chosen);
      return;
    }
    for (size_t i = next; i < order_.size(); ++i) {
      const size_t amount = order_[i];
      const Units& own = amounts_[amount].units;
      if (!fits(own, left)) continue;
      Units rest = left;
      for (size_t k = 0; k < rest.size(); ++k) rest[k] -= own[k];
      const int64_t others = most_rows(missing - 1, rest);
      if (others == kNone || rows + rows_[amount] + others < request_.rows) continue;
      chosen.push_back(amount);
      extend(chosen, i, rest, rows + rows_[amount]);
      chosen.pop_back();
    }
  }

  void add(const std::vector<size_t>& chosen) {
    const auto columns_at = [&](Nanoseconds step) {
      std::vector<int> columns;
      for (const size_t amount : chosen) columns.push_back(column_of(amount, step));
      return columns;
    };
    Division division;
    division.step = least_step([&](Nanoseconds step) {
      int64_t sum = 0, least = request_.rows;
      for (const int c : columns_at(step)) {
        const int64_t own = rows_of(c, step);
        sum += own;
        least = std::min(least, own);
      }
      return sum >= request_.rows && least > 0;
    });
    division.columns = columns_at(division.step);
    std::ranges::sort(division.columns);
    if (known_.insert(division.columns).second) found_.push_back(std::move(division));
  }

  static constexpr double kPrecision = 1e-9;
  const DivisionRequest& request_;
  const Numbers numbers_;
  std::vector<Amount> amounts_;             // used by columns
  std::vector<size_t> order_;               // indices of amounts
  std::vector<Part> parts_;                 // ascending; for few amounts
  std::vector<int64_t> rows_;               // [amount]
  std::vector<std::vector<int64_t>> most_;  // [pipelines][number]
  std::vector<double> prices_;              // per unit; for many amounts
  size_t pipelines_ = 0;                    // current number
  Nanoseconds best_{};                      // step; 0: unknown
  int visits_ = 0;
  bool one_ = false, done_ = false;
  std::vector<Division> found_;
  std::set<std::vector<int>> known_;  // their columns
};

}  // namespace

int64_t rows_in(const Column& column, Nanoseconds step, size_t pipelines) {
  Nanoseconds left = step - column.fill;
  if (!column.after.empty()) left -= column.after[std::min(pipelines, column.after.size() - 1)];
  if (left < Nanoseconds{}) return 0;
  return column.rows * std::min(column.most, 1 + left.value / column.period.value);
}

std::vector<Division> best_divisions(const DivisionRequest& request) {
  MEDLEY_CHECK(request.rows >= 1 && request.pipelines >= 1);
  return Search(request).run();
}

RowSplit split_rows(const std::vector<Column>& columns, int64_t rows) {
  RowSplit split;
  split.step = least_step([&](Nanoseconds step) {
    int64_t sum = 0;
    for (const Column& column : columns)
      sum += std::max(column.rows, rows_in(column, step, columns.size()));
    return sum >= rows;
  });
  int64_t more = -rows;
  for (const Column& column : columns) {
    const int64_t own = std::max(column.rows, rows_in(column, split.step, columns.size()));
    split.shares.push_back({own / column.rows, own});
    more += own;
  }
  const auto end_of = [&](size_t c) {
    return columns[c].fill + columns[c].period * (split.shares[c].microbatches - 1);
  };
  // Removes surplus whole micro-batches from the column that ends last.
  for (;;) {
    std::optional<size_t> last;
    for (size_t c = 0; c < columns.size(); ++c)
      if (columns[c].rows <= more && split.shares[c].microbatches > 1 &&
          (!last || end_of(c) > end_of(*last)))
        last = c;
    if (!last) break;
    --split.shares[*last].microbatches;
    split.shares[*last].rows -= columns[*last].rows;
    more -= columns[*last].rows;
  }
  // The rest shrinks the micro-batches of columns that end last.
  while (more > 0) {
    size_t last = 0;
    const auto spare = [&](size_t c) {
      return split.shares[c].rows - split.shares[c].microbatches;
    };
    for (size_t c = 1; c < columns.size(); ++c)
      if (spare(c) > 0 && (spare(last) <= 0 || end_of(c) > end_of(last))) last = c;
    MEDLEY_CHECK(spare(last) > 0);
    const int64_t some = std::min(more, spare(last));
    split.shares[last].rows -= some;
    more -= some;
  }
  return split;
}

}  // namespace medley
