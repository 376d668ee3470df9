#include "medley/runtime/in_process_transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/runtime/exchange.h"
#include "medley/runtime/fault.h"

namespace medley {

// One exchange of all devices of a group. Guarded by State::mutex, except that only the last device
// accesses the exchanges while `combining`.
struct InProcessTransport::PendingCollective {
  std::vector<std::optional<Exchange>> exchanges;  // [member]
  std::vector<std::vector<Buffer>> outputs;        // [member], once done
  std::condition_variable changed;
  size_t num_arrived = 0;
  bool done = false;
  std::optional<Fault> error;
  Nanoseconds start, end;  // of combining
};

struct InProcessTransport::State {
  Executor& executor;
  Clock& clock;
  std::chrono::milliseconds timeout;
  std::mutex mutex;
  std::optional<std::string> aborted;
  std::map<std::tuple<std::vector<int>, int, int>, int64_t>
      next;  // [group, lane, member] -> sequence number
  std::map<Key, std::shared_ptr<PendingCollective>> open;

  State(Executor& combine, Clock& a_clock, std::chrono::milliseconds a_timeout)
      : executor(combine), clock(a_clock), timeout(a_timeout) {}

  void combine(PendingCollective& collective);
  void finish(const Key& key, PendingCollective& collective);
};

class InProcessTransport::Participant final : public Pending {
 public:
  Participant(std::shared_ptr<State> state,
              std::shared_ptr<PendingCollective> collective,
              std::vector<int> group,
              int me)
      : state_(std::move(state)),
        collective_(std::move(collective)),
        group_(std::move(group)),
        me_(at(me)) {}

  std::vector<Buffer> wait() override {
    std::unique_lock lock(state_->mutex);
    const bool in_time = collective_->changed.wait_for(lock, state_->timeout, [&] {
      return collective_->done || collective_->error || state_->aborted;
    });
    if (state_->aborted) throw Error(Blame::kEnvironment, "aborted: " + *state_->aborted);
    if (collective_->error) throw Error(collective_->error->blame, collective_->error->what);
    if (!in_time) throw Error(Blame::kEnvironment, missing_text());
    return std::move(collective_->outputs[me_]);
  }

  std::optional<std::pair<Nanoseconds, Nanoseconds>> times() override {
    const std::scoped_lock lock(state_->mutex);
    if (!collective_->done) return std::nullopt;
    return std::pair(collective_->start, collective_->end);
  }

 private:
  std::string missing_text() const {
    std::vector<int> missing;
    for (size_t i = 0; i < group_.size(); ++i)
      if (!collective_->exchanges[i]) missing.push_back(group_[i]);
    return fmt::format("over devices [{}]: not posted within {} ms by devices [{}]",
                       fmt::join(group_, ", "),
                       state_->timeout.count(),
                       fmt::join(missing, ", "));
  }

  std::shared_ptr<State> state_;
  std::shared_ptr<PendingCollective> collective_;
  std::vector<int> group_;
  size_t me_;
};

// Combines outside the lock, so that other groups continue.
void InProcessTransport::State::combine(PendingCollective& collective) {
  collective.start = clock.now();
  const Exchange& first = *collective.exchanges.front();
  std::vector<std::vector<Buffer>> inputs;
  std::vector<Executor::Lengths> lengths;
  for (std::optional<Exchange>& exchange : collective.exchanges) {
    inputs.push_back(std::move(exchange->inputs));
    lengths.push_back({exchange->send, exchange->receive});
  }
  collective.outputs = first.sync ? executor.combine(*first.sync, first.dtype, inputs)
                                  : executor.combine(first.kind, first.reduce, inputs, lengths);
  MEDLEY_CHECK_EQ(collective.outputs.size(), collective.exchanges.size());
  collective.end = clock.now();
}

void InProcessTransport::State::finish(const Key& key, PendingCollective& collective) {
  const std::optional<Fault> error = fault_of([&] { combine(collective); });
  const std::scoped_lock lock(mutex);
  collective.error = error;
  collective.done = !error;
  open.erase(key);
  collective.changed.notify_all();
}

InProcessTransport::InProcessTransport(Executor& combine,
                                       Clock& clock,
                                       std::chrono::milliseconds timeout)
    : state_(std::make_shared<State>(combine, clock, timeout)) {}
InProcessTransport::~InProcessTransport() = default;

std::unique_ptr<Pending> InProcessTransport::post(Exchange exchange) {
  const auto me = at(exchange.me);
  MEDLEY_CHECK(me < exchange.group.size());
  std::unique_lock lock(state_->mutex);
  const int64_t number = state_->next[{exchange.group, exchange.lane, exchange.me}]++;
  Key key{exchange.group, exchange.lane, number};
  std::shared_ptr<PendingCollective>& slot = state_->open[key];
  if (!slot) {
    slot = std::make_shared<PendingCollective>();
    slot->exchanges.resize(exchange.group.size());
  }
  const std::shared_ptr<PendingCollective> collective = slot;
  auto participant = std::make_unique<Participant>(state_, collective, exchange.group, exchange.me);
  for (const std::optional<Exchange>& other : collective->exchanges) {
    if (!other || collective->error) continue;
    if (auto different = disagreement(*other, exchange)) {
      collective->error = Fault{Blame::kUs,
                                fmt::format("exchange {} of devices [{}]: {}",
                                            number,
                                            fmt::join(exchange.group, ", "),
                                            *different)};
      collective->changed.notify_all();
    }
  }
  collective->exchanges[me] = std::move(exchange);
  const bool last = ++collective->num_arrived == collective->exchanges.size();
  if (last && (collective->error || state_->aborted)) state_->open.erase(key);
  if (!last || collective->error || state_->aborted) return participant;
  lock.unlock();
  state_->finish(key, *collective);
  return participant;
}

void InProcessTransport::abort(const std::string& cause) {
  const std::scoped_lock lock(state_->mutex);
  if (!state_->aborted) state_->aborted = cause;
  for (auto& [key, collective] : state_->open) collective->changed.notify_all();
}

}  // namespace medley
