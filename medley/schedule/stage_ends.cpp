#include "medley/schedule/stage_ends.h"

#include <algorithm>
#include <deque>
#include <functional>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

class Rounds {
 public:
  Rounds(const std::vector<int>& in_flight, const PipelineTimes& times, std::vector<int> late)
      : times_(times),
        microbatches_(times.num_microbatches()),
        late_(std::move(late)),
        last_(in_flight.size()),
        activations_free_(in_flight.size() - 1),
        gradients_free_(in_flight.size() - 1),
        waiting_(in_flight.size() - 1) {
    late_.resize(in_flight.size());
    for (const int count : in_flight) in_flight_.push_back(std::min(count, microbatches_));
    const std::vector<int>& sizes = times.size_of;
    run_end_.assign(sizes.size(), microbatches_);
    for (size_t m = sizes.size() - 1; m-- > 0;)
      run_end_[m] = sizes[m] == sizes[m + 1] ? run_end_[m + 1] : static_cast<int>(m) + 1;
  }

  StageEnds run() {
    for (int round = 1 - in_flight_[0]; round < microbatches_; ++round) {
      go_forward(round);
      if (round < 0) continue;
      go_backward(round);
      round += skip(round);
    }
    for (size_t stage = 0; stage < late_.size(); ++stage)
      for (int m = std::max(0, microbatches_ - late_[stage] + 1);
           late_[stage] > 0 && m < microbatches_;
           ++m)
        last_[stage] += of(m).stages[stage].weights.value;
    return ends();
  }

 private:
  const MicrobatchTimes& of(int microbatch) const {
    return times_.sizes[at(times_.size_of[at(microbatch)])];
  }

  void go_forward(int round) {
    for (size_t stage = 0; stage < last_.size(); ++stage) {
      const int m = round + in_flight_[stage] - 1;
      if (m < 0 || m >= microbatches_) continue;
      const MicrobatchTimes& times = of(m);
      if (stage > 0) {
        last_[stage] = std::max(last_[stage], waiting_[stage - 1].front());
        waiting_[stage - 1].pop_front();
      }
      last_[stage] += times.stages[stage].forward.value;
      if (stage + 1 == last_.size()) continue;
      const BoundaryTimes& boundary = times.boundaries[stage];
      int64_t& free = activations_free_[stage];
      free = std::max(free, last_[stage]) + boundary.forward.value;
      waiting_[stage].push_back(free + boundary.latency.value);
    }
  }

  void go_backward(int round) {
    const MicrobatchTimes& times = of(round);
    int64_t arrival = 0;  // gradient from the next stage
    for (size_t stage = last_.size(); stage-- > 0;) {
      const StageTimes& own = times.stages[stage];
      const int late = late_[stage];
      last_[stage] = std::max(last_[stage], arrival) + own.backward.value;
      if (late > 0) last_[stage] -= own.weights.value;
      if (stage > 0) {
        const BoundaryTimes& boundary = times.boundaries[stage - 1];
        int64_t& free = gradients_free_[stage - 1];
        free = std::max(free, last_[stage]) + boundary.backward.value;
        arrival = free + boundary.latency.value;
      }
      if (late > 0 && round - late + 1 >= 0)
        last_[stage] += of(round - late + 1).stages[stage].weights.value;
    }
  }

  // Skips rounds that only repeat earlier ones; returns their number.
  int skip(int round) {
    if (round + 1 >= microbatches_) return 0;
    const int end = run_end_[at(round + 1)];
    const int left = end - in_flight_[0] - round;  // rounds with only this run's micro-batches
    if (left < 1) return 0;
    const int most_late = *std::ranges::max_element(late_);
    const int oldest = round + 1 - std::max(0, most_late - 1);  // the next weights are its
    if (oldest < 0 || run_end_[at(oldest)] != end) return 0;
    if (kept_run_ != end) {
      kept_run_ = end;
      patience_ = in_flight_[0] + 1;
      keep(round);
      return 0;
    }
    if (const int64_t shift = repeats(); shift >= 0) {
      const int period = round - kept_round_, times = left / period;
      each_time([&](int64_t& time) {
        time += shift * times;
        return true;
      });
      kept_round_ = round + times * period;
      for (int64_t& time : kept_) time += shift * (times + 1);
      return times * period;
    }
    if (round - kept_round_ >= patience_) {
      patience_ += patience_ / 2;
      keep(round);
    }
    return 0;
  }

  template <typename Visit>
  bool each_time(Visit visit) {
    for (std::vector<int64_t>* times : {&last_, &activations_free_, &gradients_free_})
      for (int64_t& time : *times)
        if (!visit(time)) return false;
    for (std::deque<int64_t>& arrivals : waiting_)
      for (int64_t& time : arrivals)
        if (!visit(time)) return false;
    return true;
  }

  void keep(int round) {
    kept_.clear();
    kept_round_ = round;
    each_time([&](int64_t time) {
      kept_.push_back(time);
      return true;
    });
  }

  // Returns the time shift from the stored state if the states are otherwise equal, or -1.
  int64_t repeats() {
    const int64_t shift = last_[0] - kept_[0];
    size_t i = 0;
    const bool same = each_time([&](int64_t time) { return time - kept_[i++] == shift; });
    return same ? shift : -1;
  }

  StageEnds ends() const {
    std::vector<int64_t> count(times_.sizes.size());
    for (const int size : times_.size_of) ++count[at(size)];
    StageEnds ends;
    for (size_t stage = 0; stage < last_.size(); ++stage) {
      ends.last.push_back({last_[stage]});
      Nanoseconds& busy = ends.busy.emplace_back();
      for (size_t size = 0; size < count.size(); ++size) {
        const StageTimes& own = times_.sizes[size].stages[stage];
        busy += (own.forward + own.backward) * count[size];
      }
      ends.finish = std::max(ends.finish, ends.last.back());
    }
    return ends;
  }

  const PipelineTimes& times_;
  const int microbatches_;
  std::vector<int> in_flight_, late_;  // [stage]
  std::vector<int> run_end_;           // [micro-batch] end of its run of equal sizes
  std::vector<int64_t> last_, activations_free_, gradients_free_;  // [stage], [boundary]
  std::vector<std::deque<int64_t>> waiting_;                       // [boundary] unread arrivals
  std::vector<int64_t> kept_;                                      // state of an earlier round
  int kept_round_ = 0, kept_run_ = -1;
  int patience_ = 0;  // rounds until a later one is stored
};

}  // namespace

StageEnds time_ends(const std::vector<int>& in_flight,
                    const PipelineTimes& times,
                    const std::vector<int>& late) {
  MEDLEY_CHECK_EQ(in_flight.size(), times.num_stages());
  MEDLEY_CHECK(late.empty() || late.size() == in_flight.size());
  MEDLEY_CHECK(in_flight.back() >= 1 && std::ranges::is_sorted(in_flight, std::greater<>()));
  return Rounds(in_flight, times, late).run();
}

}  // namespace medley
