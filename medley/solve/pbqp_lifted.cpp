#include "medley/solve/pbqp_lifted.h"

#include <algorithm>

#include "medley/base/at.h"
#include "medley/solve/pbqp_dual.h"
#include "medley/solve/pbqp_eliminate.h"

namespace medley::pbqp {
namespace {

constexpr int kClassIterations = 100, kIterations = 10, kAllWindows = 100;
constexpr int kProvable = 100'000;  // slack of the first window, as a part of the bound

class LiftedSolver {
 public:
  LiftedSolver(Reducer& reducer,
               const Core& core,
               const PbqpOptions& options,
               Clock::time_point deadline)
      : reducer_(reducer),
        core_(core),
        table_cap_(options.table_cap),
        cap_(std::min(options.window_cap, options.table_cap)),
        work_cap_(options.work_cap),
        deadline_(deadline),
        dual_(reducer.pool(), core) {}

  LiftedResult run(int rounds) {
    dual_.iterate_classes(kClassIterations, deadline_);
    // The gap at which a window was too large; larger ones are not tried again.
    int64_t gap_too_large = std::numeric_limits<int64_t>::max();
    int64_t lower_before = 0;
    while (true) {
      dual_.iterate(kIterations, deadline_);
      const bool last = --rounds <= 0 || Clock::now() >= deadline_;
      if (!last && rises_fast()) continue;
      if (tighten()) return std::move(out_);
      if (out_.cost <= out_.lower) break;
      const int64_t gap = out_.cost - out_.lower;
      gap_ = static_cast<double>(gap);
      // While the bound rises, only the narrowest window is worth its time.
      const bool rising = (out_.lower - lower_before) * 20 > gap;
      const bool stuck = (out_.lower - lower_before) * 50 <= gap;
      lower_before = out_.lower;
      if (stuck && cap_ < table_cap_) {
        cap_ = std::min(table_cap_, cap_ * 4);
        gap_too_large = std::numeric_limits<int64_t>::max();
      }
      if (rising && try_windows(1)) break;
      if (!rising && gap < gap_too_large - gap_too_large / 4) {
        if (try_windows(kAllWindows)) break;
        gap_too_large = out_.cost - out_.lower;
      }
      if (last || Clock::now() >= deadline_) return std::move(out_);
    }
    out_.lower = out_.cost;
    return std::move(out_);
  }

 private:
  enum class Window : uint8_t { kSolved, kInfeasible, kTooLarge };

  // An exact bound and a window take as long as twenty iterations. While the bound rises they wait
  // until the gap falls to a quarter, or is so small that a window proves the answer.
  bool rises_fast() {
    const double estimate = dual_.estimate(), rise = estimate - estimate_;
    estimate_ = estimate;
    const double gap = static_cast<double>(out_.cost) - estimate;
    return gap > gap_ / 4 && gap > estimate / kProvable && rise * 20 > gap;
  }

  // Takes the bound and the assignment of the current messages. Returns whether none is allowed.
  bool tighten() {
    Bound bound = dual_.bound();
    if (bound.lower > bound_.lower || bound_.reduced.empty()) bound_ = std::move(bound);
    out_.lower = std::max(out_.lower, bound_.lower);
    if (static_cast<double>(bound_.lower) >= core_.constant + dual_.forbidden()) {
      out_.lower = kForbidden;
      return true;
    }
    decode();
    return false;
  }

  void decode() {
    const std::vector<int32_t> positions = dual_.decode();
    double cost = core_.constant;
    for (size_t v = 0; v < positions.size(); ++v)
      if (core_.unary[v] >= 0) cost += reducer_.pool()[core_.unary[v]].costs[at(positions[v])];
    for (const CoreEdge& edge : core_.edges) {
      const Table& table = reducer_.pool()[edge.table];
      cost +=
          table.costs[at(positions[at(edge.u)]) * at(table.sizes[1]) + at(positions[at(edge.v)])];
    }
    if (cost >= static_cast<double>(out_.cost)) return;
    out_.cost = static_cast<int64_t>(cost);
    out_.choices.clear();
    for (size_t v = 0; v < positions.size(); ++v)
      out_.choices.push_back(core_.choices[v][at(positions[v])]);
  }

  // Tries wider and wider windows. Returns whether the best answer, or its absence, is proved.
  bool try_windows(int most) {
    size_t kept_before = 0;
    int64_t slack = bound_.lower / kProvable + static_cast<int64_t>(core_.num_variables());
    for (; most-- > 0; slack = std::min(slack * 8, kForbidden)) {
      slack = std::min(slack, out_.cost - out_.lower);
      size_t kept = 0, all = 0;
      std::vector<std::vector<int32_t>> keep(core_.num_variables());
      for (size_t v = 0; v < keep.size(); ++v) {
        if (core_.unary[v] < 0) keep[v].push_back(0);
        for (size_t s = 0; s < bound_.reduced[v].size(); ++s)
          if (bound_.reduced[v][s] <= slack) keep[v].push_back(static_cast<int32_t>(s));
        kept += keep[v].size();
        all += core_.choices[v].size();
      }
      if (kept > kept_before) {
        const Window window = solve_window(keep);
        if (window == Window::kTooLarge || Clock::now() >= deadline_) return false;
        if (window == Window::kInfeasible && kept == all) out_.lower = kForbidden;
      }
      kept_before = kept;
      if (out_.cost - bound_.lower <= slack || kept == all) return true;
    }
    return false;
  }

  Window solve_window(const std::vector<std::vector<int32_t>>& keep) {
    Core core = reducer_.restrict(core_, keep);
    if (!reducer_.remove_dead_ends(core)) return Window::kInfeasible;
    const auto order = find_order(core, static_cast<double>(cap_), static_cast<double>(work_cap_));
    if (!order) return Window::kTooLarge;
    const Elimination result = eliminate(reducer_.pool(), core, *order, deadline_);
    out_.largest_table = std::max(out_.largest_table, result.largest_table);
    out_.work += result.work;
    if (result.outcome == Elimination::Outcome::kOutOfTime) return Window::kTooLarge;
    if (result.outcome == Elimination::Outcome::kInfeasible) return Window::kInfeasible;
    if (result.cost >= static_cast<double>(out_.cost)) return Window::kSolved;
    out_.cost = static_cast<int64_t>(result.cost);
    out_.choices = result.choices;
    return Window::kSolved;
  }

  Reducer& reducer_;
  const Core& core_;
  const int64_t table_cap_;
  int64_t cap_;
  const int64_t work_cap_;
  const Clock::time_point deadline_;
  Dual dual_;
  Bound bound_;
  double gap_ = std::numeric_limits<double>::max(), estimate_ = 0;  // at the last exact bound; now
  LiftedResult out_;
};

}  // namespace

LiftedResult solve_lifted(Reducer& reducer,
                          const Core& core,
                          const PbqpOptions& options,
                          Clock::time_point deadline,
                          int rounds) {
  return LiftedSolver(reducer, core, options, deadline).run(rounds);
}

}  // namespace medley::pbqp
