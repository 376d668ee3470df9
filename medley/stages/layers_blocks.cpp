#include "medley/stages/layers_blocks.h"
#include "medley/base/at.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>

namespace medley {
namespace {

constexpr int32_t kAllCuts = 256;  // positions; up to this, all cuts are tried
constexpr double kUneven = 2;      // largest layer's flops relative to the mean

class BlockFinder {
 public:
  explicit BlockFinder(const Sequence& sequence)
      : sequence_(sequence), size_(static_cast<int32_t>(sequence.token.size())) {
    flops_before_.push_back(0);
    for (double flops : sequence.flops) flops_before_.push_back(flops_before_.back() + flops);
  }

  std::vector<RepeatedBlock> run() {
    find_periods();
    find(0, size_);
    std::sort(blocks_.begin(), blocks_.end(), [](const RepeatedBlock& a, const RepeatedBlock& b) {
      return a.begin < b.begin;
    });
    return std::move(blocks_);
  }

 private:
  struct Run {
    int32_t begin = 0, end = 0, period = 0;
    double flops = 0;  // in whole blocks
  };

  double flops(int32_t begin, int32_t end) const {
    return flops_before_[at(end)] - flops_before_[at(begin)];
  }

  // Finds distances between equal windows that are frequent enough to fill part of a period.
  void find_periods() {
    for (const int32_t length : {1, 4}) find_periods(length);
    std::sort(periods_.begin(), periods_.end());
    periods_.erase(std::unique(periods_.begin(), periods_.end()), periods_.end());
  }

  void find_periods(int32_t length) {
    std::unordered_map<Token, int32_t> last;
    std::map<int32_t, int32_t> count;
    for (int32_t i = 0; i < size_; ++i) {
      Token window = 0;
      for (int32_t j = 0; j < length && i + j < size_; ++j)
        window = mix(window, sequence_.token[at(i + j)]);
      const auto [found, fresh] = last.try_emplace(window, i);
      if (fresh) continue;
      ++count[i - found->second];
      found->second = i;
    }
    for (const auto& [period, times] : count)
      if (4 * times >= period - length) periods_.push_back(period);
  }

  // Returns whether op `i` equals op `i - period`, with the run's first block at `begin`.
  bool like(int32_t i, int32_t period, int32_t begin) const {
    if (sequence_.token[at(i)] != sequence_.token[at(i - period)]) return false;
    const std::vector<Sequence::Source>&a = sequence_.sources[at(i)],
          &b = sequence_.sources[at(i - period)];
    if (a.size() != b.size()) return false;
    for (size_t k = 0; k < a.size(); ++k) {
      const bool same = a[k].position == b[k].position || b[k].position < begin;
      if (same) continue;
      if (a[k].result != b[k].result || a[k].position - b[k].position != period) return false;
    }
    return true;
  }

  void note(Run run, Run& best) const {
    const int32_t count = (run.end - run.begin) / run.period;
    if (count < 2) return;
    run.flops = flops(run.begin, run.begin + count * run.period);
    if (run.flops > best.flops && is_chain(align(run))) best = run;
  }

  Run best_run(int32_t begin, int32_t end) const {
    Run best;
    for (const int32_t period : periods_) {
      int32_t first = begin;  // start of the earlier block
      for (int32_t i = begin + period; i < end; ++i) {
        if (like(i, period, first)) continue;
        note({first, i, period, 0}, best);
        first = i - period + 1;
      }
      note({first, end, period, 0}, best);
    }
    return best;
  }

  // Returns whether the second block reads the first one: parallel projections are no blocks.
  bool is_chain(const RepeatedBlock& block) const {
    const int32_t second = block.begin + block.length;
    for (int32_t i = second; i < second + block.length; ++i)
      for (const Sequence::Source& source : sequence_.sources[at(i)])
        if (source.position >= block.begin && source.position < second) return true;
    return false;
  }

  // Aligns the blocks within the run's slack: fewest bytes at their cuts, the latest of these.
  RepeatedBlock align(const Run& run) const {
    const int32_t count = (run.end - run.begin) / run.period;
    RepeatedBlock best{run.begin, run.period, count};
    int64_t fewest = std::numeric_limits<int64_t>::max();
    for (int32_t begin = run.begin; begin + count * run.period <= run.end; ++begin) {
      int64_t bytes = 0;
      for (int32_t k = 0; k <= count; ++k) bytes += bytes_at(begin + k * run.period);
      if (bytes <= fewest) {
        fewest = bytes;
        best.begin = begin;
      }
    }
    return best;
  }

  int64_t bytes_at(int32_t cut) const { return cut < size_ ? sequence_.bytes[at(cut)] : 0; }

  void find(int32_t begin, int32_t end) {
    const Run run = best_run(begin, end);
    if (run.period == 0) return;
    const RepeatedBlock block = align(run);
    blocks_.push_back(block);
    find(begin, block.begin);
    find(block.begin + block.count * block.length, end);
  }

  const Sequence& sequence_;
  const int32_t size_;
  std::vector<double> flops_before_;  // [position]
  std::vector<int32_t> periods_;      // ascending
  std::vector<RepeatedBlock> blocks_;
};

// Divides positions begin .. end at cuts with the fewest bytes.
class Divider {
 public:
  Divider(const Sequence& sequence, int32_t begin, int32_t end) : sequence_(sequence) {
    // In long stretches, cuts beaten by a neighbour are dropped.
    cuts_.push_back(begin);
    for (int32_t cut = begin + 1; cut < end; ++cut) {
      const int64_t bytes = sequence.bytes[at(cut)];
      const bool before = cut - 1 == begin || sequence.bytes[at(cut - 1)] >= bytes;
      const bool after = cut + 1 == end || sequence.bytes[at(cut + 1)] >= bytes;
      if (end - begin <= kAllCuts || (before && after)) cuts_.push_back(cut);
    }
    cuts_.push_back(end);
    flops_.push_back(0);
    for (size_t i = 1; i < cuts_.size(); ++i) {
      double sum = flops_.back();
      for (int32_t p = cuts_[i - 1]; p < cuts_[i]; ++p) {
        sum += sequence.flops[at(p)];
        largest_ = std::max(largest_, sequence.flops[at(p)]);
      }
      flops_.push_back(sum);
    }
  }

  std::vector<int32_t> run(int count) {
    for (; count > 1; --count) {
      if (flops_.back() <= 0) break;
      limit_ = std::max(kUneven * flops_.back() / count, largest_);
      const auto fewest = solve(
          count,
          [&](size_t i) { return static_cast<double>(bytes(i)); },
          [](size_t, size_t) { return 0.0; });
      if (!fewest) continue;
      const double most = fewest->worst;
      const auto even = solve(
          count,
          [&](size_t i) { return static_cast<double>(bytes(i)) <= most ? 0.0 : kNever; },
          [&](size_t from, size_t to) { return flops_[to] - flops_[from]; });
      return even->cuts;
    }
    return {};
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Solution {
    double worst;
    std::vector<int32_t> cuts;
  };

  int64_t bytes(size_t i) const { return sequence_.bytes[at(cuts_[i])]; }

  // Returns the `count` layers with the best worst cut and layer; ties go to the earliest cuts.
  template <typename CutCost, typename LayerCost>
  std::optional<Solution> solve(int count, CutCost cut_cost, LayerCost layer_cost) const {
    const size_t n = cuts_.size();
    std::vector<std::vector<double>> best(at(count) + 1, std::vector<double>(n, kNever));
    std::vector<std::vector<size_t>> from(at(count) + 1, std::vector<size_t>(n));
    best[0][0] = 0;
    for (size_t k = 1; k <= at(count); ++k)
      for (size_t to = 1; to < n; ++to)
        for (size_t i = to; i-- > 0;) {
          const double flops = flops_[to] - flops_[i];
          if (flops > limit_ * (1 + 1e-9)) break;
          if (flops <= 0 || best[k - 1][i] == kNever) continue;
          const double here = i == 0 ? 0 : cut_cost(i);
          const double worst = std::max({best[k - 1][i], here, layer_cost(i, to)});
          if (worst <= best[k][to] && worst != kNever) {
            best[k][to] = worst;
            from[k][to] = i;
          }
        }
    if (best[at(count)][n - 1] == kNever) return std::nullopt;
    Solution solution{best[at(count)][n - 1], {}};
    size_t i = n - 1;
    for (auto k = at(count); k > 1; --k) solution.cuts.push_back(cuts_[i = from[k][i]]);
    std::reverse(solution.cuts.begin(), solution.cuts.end());
    return solution;
  }

  const Sequence& sequence_;
  std::vector<int32_t> cuts_;  // candidates, both ends included
  std::vector<double> flops_;  // [candidate] before it
  double largest_ = 0, limit_ = 0;
};

}  // namespace

std::vector<RepeatedBlock> find_blocks(const Sequence& sequence) {
  return BlockFinder(sequence).run();
}

std::vector<int32_t> divide(const Sequence& sequence, int32_t begin, int32_t end, int count) {
  return Divider(sequence, begin, end).run(count);
}

}  // namespace medley
