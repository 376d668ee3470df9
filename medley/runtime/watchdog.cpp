#include "medley/runtime/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "medley/base/error.h"

namespace medley {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kLeastHeartbeats = 4;  // per heartbeat_timeout

FailureDetectorOptions detection(const WatchdogOptions& options) {
  const auto times = [](milliseconds all, milliseconds one) {
    return static_cast<int>((all + one - milliseconds(1)) / one);
  };
  return {options.generation,
          options.device,
          options.devices,
          options.names,
          options.link,
          times(options.heartbeat, options.poll),
          std::max(kLeastHeartbeats, times(options.heartbeat_timeout, options.heartbeat)),
          fmt::format("{} ms", options.heartbeat_timeout.count())};
}

}  // namespace

WatchdogOptions with_heartbeats(WatchdogOptions options) {
  const milliseconds most = std::max(milliseconds(1), options.heartbeat_timeout / kLeastHeartbeats);
  options.heartbeat = std::min(options.heartbeat, most);
  options.poll = std::min(options.poll, options.heartbeat);
  return options;
}

Watchdog::Watchdog(Store& store, WatchdogOptions options, Abort abort, Exit exit)
    : options_(with_heartbeats(std::move(options))),
      detector_(store, detection(options_)),
      abort_(std::move(abort)),
      exit_(std::move(exit)),
      store_answered_(steady_clock::now()) {
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// Publishes a failure. With an unreachable store, only this device learns of it.
void Watchdog::publish(const Failure& failure) {
  Failure first = failure;
  try {
    first = detector_.publish(failure);
  } catch (const std::exception&) {
  }
  const std::scoped_lock lock(mutex_);
  if (!first_) first_ = first;
  changed_.notify_all();
}

Failure Watchdog::fail(const std::string& call,
                       const std::string& edge,
                       const std::string& cause,
                       Blame blame) {
  publish(cause_of({options_.generation, options_.device, call, edge, cause, blame}));
  std::this_thread::sleep_for(2 * options_.poll);
  const std::scoped_lock lock(mutex_);
  return *first_;
}

// Returns the cause. A finished peer also fails exchanges, by closing its connections.
Failure Watchdog::cause_of(const Failure& failure) {
  std::unique_lock lock(mutex_);
  const JointCalls calls = calls_;
  lock.unlock();
  try {
    if (!failure.edge.empty()) return detector_.who_has_left(calls).value_or(failure);
  } catch (const Error&) {  // the store is gone as well
  }
  return failure;
}

void Watchdog::begin(const std::string& joint_call) {
  const std::scoped_lock lock(mutex_);
  calls_.begin(joint_call);
}

void Watchdog::end() {
  const std::scoped_lock lock(mutex_);
  calls_.end();
}

void Watchdog::finish() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  // Joins first, since the thread may be about to send a last heartbeat.
  if (thread_.joinable()) thread_.join();
  thread_ = std::thread([] {});
  try {
    detector_.finish(calls_);
  } catch (const Error&) {
  }
}

std::optional<Failure> Watchdog::first_failure() {
  const std::scoped_lock lock(mutex_);
  return first_;
}

void Watchdog::run() {
  for (;;) {
    try {
      look();
      store_answered_ = steady_clock::now();
    } catch (const std::exception& cause) {
      // A store in one of the processes may end before the others. Only a device that waits for
      // others needs it.
      if (waits_for_others() && steady_clock::now() - store_answered_ > options_.heartbeat_timeout)
        publish({options_.generation, options_.device, "", options_.link, cause.what()});
    }
    std::unique_lock lock(mutex_);
    if (!first_)
      changed_.wait_for(lock, options_.poll, [this] { return stop_ || first_.has_value(); });
    if (stop_) return;
    if (!first_) continue;
    lock.unlock();
    return end_run();
  }
}

bool Watchdog::waits_for_others() {
  const std::scoped_lock lock(mutex_);
  return calls_.last().running;
}

void Watchdog::look() {
  std::unique_lock lock(mutex_);
  const JointCalls calls = calls_;
  lock.unlock();
  const auto failure = detector_.look(calls);
  lock.lock();
  if (!first_) first_ = failure;
}

void Watchdog::end_run() {
  const Failure first = *first_failure();
  const std::string cause = describe(first);
  abort_(cause);
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, options_.grace, [this] { return stop_; })) return;
  lock.unlock();
  exit_(cause, first.blame);
}

void print_and_exit(const std::string& first_cause, Blame blame) {
  fmt::print(stderr, "medley: {}\n", first_cause);
  std::fflush(stderr);
  _exit(blame == Blame::kCaller ? 2 : blame == Blame::kEnvironment ? 3 : 1);
}

}  // namespace medley
