#include "medley/runtime/failure_detector.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

constexpr const char* kFinished = "finished";

size_t place_of(const std::vector<int>& devices, int device) {
  return at(std::find(devices.begin(), devices.end(), device) - devices.begin());
}

// Returns "step()" for "step() of 3 rows".
std::string function_of(const std::string& call) {
  const size_t end = call.find(") ");
  return end == std::string::npos ? call : call.substr(0, end + 1);
}

// Returns ("12", "rest") for "12 rest".
std::pair<std::string, std::string> cut(const std::string& text) {
  const size_t space = text.find(' ');
  if (space == std::string::npos) return {text, ""};
  return {text.substr(0, space), text.substr(space + 1)};
}

}  // namespace

FailureDetector::FailureDetector(Store& store, FailureDetectorOptions options)
    : store_(store), options_(std::move(options)), next_(options_.device) {
  choose_next();
}

std::string FailureDetector::key(const std::string& what) const {
  return fmt::format("generation/{}/{}", options_.generation, what);
}

std::string FailureDetector::key_of(int device) const {
  return key(fmt::format("heartbeat/{}", device));
}

std::string FailureDetector::name(int device) const {
  const size_t place = place_of(options_.devices, device);
  return place < options_.names.size() ? options_.names[place] : fmt::format("device {}", device);
}

std::optional<Failure> FailureDetector::look(const JointCalls& calls) {
  if (num_looks_++ % options_.looks_per_heartbeat == 0) {
    store_.set(key_of(options_.device),
               fmt::format("{} {}", num_heartbeats_++, to_text(calls.last())));
    if (next_) look_at_next(calls);
    if (const auto left = who_has_left(calls, finished_)) publish(*left);
  }
  if (const auto text = store_.get(key("failure"))) return read(*text);
  return std::nullopt;
}

// Reads a failure. An unreadable one ends the run as well, since the first will never be known.
Failure FailureDetector::read(const std::string& text) const {
  try {
    return parse_failure(text, key("failure"));
  } catch (const Error& error) {
    return {options_.generation, options_.device, "", options_.link, error.what()};
  }
}

// Causes mostly begin with the name, and contain call and exchange.
std::string FailureDetector::describe(const Failure& failure) const {
  if (!failure.device) return failure.cause;
  std::string text = name(*failure.device);
  if (failure.cause.starts_with(text + ": ")) return failure.cause;
  for (const std::string& part : {failure.call, failure.edge})
    if (!part.empty()) text += ": " + part;
  return fmt::format("{}: {}", text, failure.cause);
}

Failure FailureDetector::publish(const Failure& failure) {
  const Failure first = read(store_.set_first(key("failure"), to_json(failure)));
  if (first == failure)
    store_.set_first("failure",
                     to_job_json(failure,
                                 failure.device ? name(*failure.device) : "",
                                 name(options_.device),
                                 describe(failure)));
  return first;
}

// Adds this device to the list of finished ones before its last heartbeat.
void FailureDetector::finish(const JointCalls& calls) {
  store_.append(key(kFinished), fmt::format("{} {}\n", options_.device, to_text(calls.last())));
  store_.set(key_of(options_.device), kFinished);
}

void FailureDetector::look_at_next(const JointCalls& calls) {
  const auto heartbeat = store_.get(key_of(*next_));
  if (heartbeat == kFinished) {
    finished_ = read_finished();
    return choose_next();
  }
  if (heartbeat != seen_) {
    seen_ = heartbeat;
    unchanged_ = 0;
    const auto [count, call] = cut(*heartbeat);
    if (const auto theirs = parse_joint_call(call)) compare(calls, *theirs);
    return;
  }
  ++unchanged_;
  if (unchanged_ == (options_.heartbeat_timeout + 1) / 2) suspects_ = others();
  if (unchanged_ >= options_.heartbeat_timeout) publish(silence());
}

FailureDetector::Finished FailureDetector::read_finished() const {
  std::istringstream list(store_.get(key(kFinished)).value_or(""));
  Finished found;
  for (std::string line; std::getline(list, line);) {
    const auto [device, call] = cut(line);
    const auto last = parse_joint_call(call);
    for (int each : options_.devices)
      if (last && device == std::to_string(each)) found[each] = *last;
  }
  return found;
}

void FailureDetector::choose_next() {
  const std::vector<int>& ring = options_.devices;
  const size_t place = place_of(ring, *next_);
  next_.reset();
  seen_.reset();
  unchanged_ = 0;
  for (size_t i = 1; i < ring.size() && !next_; ++i) {
    const int device = ring[(place + i) % ring.size()];
    if (device == options_.device) return;
    if (!finished_.contains(device)) next_ = device;
  }
}

// Compares the calls of the same number on both devices.
void FailureDetector::compare(const JointCalls& calls, const JointCall& theirs) {
  const auto own = calls.name(theirs.number);
  if (!own || *own == theirs.name) return;
  publish({options_.generation,
           {},
           "",
           "",
           fmt::format("{} is in {}, {} in {}: all processes have to make the same calls",
                       name(*next_),
                       theirs.name,
                       name(options_.device),
                       *own),
           Blame::kCaller});
}

std::optional<Failure> FailureDetector::who_has_left(const JointCalls& calls) const {
  return who_has_left(calls, read_finished());
}

std::optional<Failure> FailureDetector::who_has_left(const JointCalls& calls,
                                                     const Finished& finished) const {
  const JointCall own = calls.last();
  if (!own.running) return std::nullopt;
  for (const auto& [device, last] : finished)
    if (last.number < own.number)
      return Failure{options_.generation,
                     {},
                     "",
                     "",
                     fmt::format("{} has finished, {} waits for it in {}: all processes have to "
                                 "make the same calls",
                                 name(device),
                                 name(options_.device),
                                 function_of(own.name)),
                     Blame::kCaller};
  return std::nullopt;
}

FailureDetector::Heartbeats FailureDetector::others() const {
  Heartbeats found;
  for (int device : options_.devices)
    if (device != options_.device && device != *next_) found[device] = store_.get(key_of(device));
  return found;
}

Failure FailureDetector::silence() const {
  const Heartbeats now = others();
  std::vector<std::string> silent;
  for (int device : options_.devices)
    if (auto found = now.find(device);
        found != now.end() && found->second != kFinished && found->second == suspects_.at(device))
      silent.push_back(name(device));
  return {options_.generation,
          *next_,
          "",
          options_.link,
          fmt::format("no sign of life for {}{}, says {}: {}",
                      options_.heartbeat_timeout_text,
                      silent.empty() ? "" : fmt::format(", nor of {}", fmt::join(silent, ", ")),
                      name(options_.device),
                      silent.empty() ? "its process was killed or its link is dead"
                                     : "their processes were killed or their links are dead")};
}

}  // namespace medley
