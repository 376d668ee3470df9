#include "medley/runtime/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "medley/base/error.h"

namespace medley {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

constexpr const char* kFinished = "finished";

Failure parse_failure(const std::string& text) {
  const json value = json::parse(text);
  return {
      value.at("epoch"), value.at("device"), value.at("call"), value.at("edge"), value.at("cause")};
}

}  // namespace

std::string to_json(const Failure& failure) {
  return json{{"epoch", failure.epoch},
              {"device", failure.device},
              {"call", failure.call},
              {"edge", failure.edge},
              {"cause", failure.cause}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Watchdog::Watchdog(Store& store, WatchdogOptions options, Action abort, Action exit)
    : store_(store),
      options_(std::move(options)),
      abort_(std::move(abort)),
      exit_(std::move(exit)),
      next_heartbeat_(steady_clock::now()),
      store_answered_(next_heartbeat_) {
  for (int device : options_.devices)
    if (device != options_.device) signs_[device] = {std::nullopt, next_heartbeat_};
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

std::string Watchdog::name(int device) const {
  const auto place = std::find(options_.devices.begin(), options_.devices.end(), device);
  const auto index = static_cast<size_t>(place - options_.devices.begin());
  return index < options_.names.size() ? options_.names[index] : fmt::format("device {}", device);
}

// Causes mostly begin with the name already, and say call and exchange.
std::string Watchdog::describe(const Failure& failure) const {
  std::string text = name(failure.device);
  if (failure.cause.starts_with(text + ": ")) return failure.cause;
  for (const std::string& part : {failure.call, failure.edge})
    if (!part.empty()) text += ": " + part;
  return fmt::format("{}: {}", text, failure.cause);
}

std::string Watchdog::key(const std::string& what) const {
  return fmt::format("epoch/{}/{}", options_.epoch, what);
}

// An unreachable store keeps the failure from others, not from us.
void Watchdog::publish(const Failure& failure) {
  Failure first = failure;
  try {
    first = parse_failure(store_.set_first(key("failure"), to_json(failure)));
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
    store_.set(key(fmt::format("heartbeat/{}", options_.device)), kFinished);
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
  if (steady_clock::now() >= next_heartbeat_) {
    store_.set(key(fmt::format("heartbeat/{}", options_.device)),
               std::to_string(num_heartbeats_++));
    next_heartbeat_ = steady_clock::now() + options_.heartbeat;
    look_for_silence();
  }
  if (const auto failure = store_.get(key("failure"))) {
    const std::scoped_lock lock(mutex_);
    if (!first_) first_ = parse_failure(*failure);
  }
}

void Watchdog::look_for_silence() {
  for (auto& [device, sign] : signs_) {
    const auto heartbeat = store_.get(key(fmt::format("heartbeat/{}", device)));
    const Time now = steady_clock::now();
    if (heartbeat != sign.heartbeat) sign = {heartbeat, now};
    if (sign.heartbeat == kFinished || now - sign.changed <= options_.dead_after) continue;
    publish({options_.epoch,
             device,
             "",
             options_.link,
             fmt::format("no sign of life for {} ms, says {}: its process was killed or its link "
                         "is dead",
                         options_.dead_after.count(),
                         name(options_.device))});
    return;
  }
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
