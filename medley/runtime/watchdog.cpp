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

FailureDetectorOptions detection(const WatchdogOptions& options) {
  const auto times = [](milliseconds all, milliseconds one) {
    return static_cast<int>((all + one - milliseconds(1)) / one);
  };
  return {options.epoch,
          options.device,
          options.devices,
          options.names,
          options.link,
          times(options.heartbeat, options.poll),
          std::max(4, times(options.dead_after, options.heartbeat)),
          fmt::format("{} ms", options.dead_after.count())};
}

}  // namespace

Watchdog::Watchdog(Store& store, WatchdogOptions options, Action abort, Action exit)
    : options_(std::move(options)),
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

// Causes mostly begin with the name already, and say call and exchange.
std::string Watchdog::describe(const Failure& failure) const {
  std::string text = detector_.name(failure.device);
  if (failure.cause.starts_with(text + ": ")) return failure.cause;
  for (const std::string& part : {failure.call, failure.edge})
    if (!part.empty()) text += ": " + part;
  return fmt::format("{}: {}", text, failure.cause);
}

// An unreachable store keeps the failure from others, not from us.
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

Failure Watchdog::fail(const std::string& call, const std::string& edge, const std::string& cause) {
  publish({options_.epoch, options_.device, call, edge, cause});
  std::this_thread::sleep_for(2 * options_.poll);
  const std::scoped_lock lock(mutex_);
  return *first_;
}

void Watchdog::finish() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  // The thread may be about to send a last heartbeat, which must not come after this.
  if (thread_.joinable()) thread_.join();
  thread_ = std::thread([] {});
  try {
    detector_.finish();
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
      if (steady_clock::now() - store_answered_ > options_.dead_after)
        publish({options_.epoch, options_.device, "", options_.link, cause.what()});
    }
    std::unique_lock lock(mutex_);
    if (!first_)
      changed_.wait_for(lock, options_.poll, [this] { return stop_ || first_.has_value(); });
    if (stop_) return;
    if (!first_) continue;
    lock.unlock();
    return end();
  }
}

void Watchdog::look() {
  const auto failure = detector_.look();
  const std::scoped_lock lock(mutex_);
  if (!first_) first_ = failure;
}

void Watchdog::end() {
  const std::string cause = describe(*first_failure());
  abort_(cause);
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, options_.grace, [this] { return stop_; })) return;
  lock.unlock();
  exit_(cause);
}

void print_and_exit(const std::string& first_cause) {
  fmt::print(stderr, "medley: {}\n", first_cause);
  std::fflush(stderr);
  _exit(3);
}

}  // namespace medley
