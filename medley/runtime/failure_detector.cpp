#include "medley/runtime/failure_detector.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "medley/base/error.h"

namespace medley {
namespace {

constexpr const char* kFinished = "finished";

size_t place_of(const std::vector<int>& devices, int device) {
  return static_cast<size_t>(std::find(devices.begin(), devices.end(), device) - devices.begin());
}

}  // namespace

FailureDetector::FailureDetector(Store& store, FailureDetectorOptions options)
    : store_(store), options_(std::move(options)), next_(options_.device) {
  choose_next({});
}

std::string FailureDetector::key(const std::string& what) const {
  return fmt::format("epoch/{}/{}", options_.epoch, what);
}

std::string FailureDetector::key_of(int device) const {
  return key(fmt::format("heartbeat/{}", device));
}

std::string FailureDetector::name(int device) const {
  const size_t place = place_of(options_.devices, device);
  return place < options_.names.size() ? options_.names[place] : fmt::format("device {}", device);
}

std::optional<Failure> FailureDetector::look() {
  if (num_looks_++ % options_.looks_per_heartbeat == 0) {
    store_.set(key_of(options_.device), std::to_string(num_heartbeats_++));
    if (next_) look_at_next();
  }
  if (const auto text = store_.get(key("failure"))) return read(*text);
  return std::nullopt;
}

// What cannot be read ends the run as well: the first failure will never be known.
Failure FailureDetector::read(const std::string& text) const {
  try {
    return parse_failure(text, key("failure"));
  } catch (const Error& error) {
    return {options_.epoch, options_.device, "", options_.link, error.what()};
  }
}

Failure FailureDetector::publish(const Failure& failure) {
  return read(store_.set_first(key("failure"), to_json(failure)));
}

// Whoever sees the heartbeat finds the device in the list.
void FailureDetector::finish() {
  store_.append(key(kFinished), fmt::format("{} ", options_.device));
  store_.set(key_of(options_.device), kFinished);
}

void FailureDetector::look_at_next() {
  const auto heartbeat = store_.get(key_of(*next_));
  if (heartbeat == kFinished) return choose_next(finished());
  if (heartbeat != seen_) {
    seen_ = heartbeat;
    unchanged_ = 0;
    return;
  }
  ++unchanged_;
  if (unchanged_ == (options_.dead_after + 1) / 2) suspects_ = others();
  if (unchanged_ >= options_.dead_after) publish(silence());
}

std::set<int> FailureDetector::finished() const {
  std::istringstream list(store_.get(key(kFinished)).value_or(""));
  std::set<int> found;
  for (int device = 0; list >> device;) found.insert(device);
  return found;
}

void FailureDetector::choose_next(const std::set<int>& finished) {
  const std::vector<int>& ring = options_.devices;
  const size_t place = place_of(ring, *next_);
  next_.reset();
  seen_.reset();
  unchanged_ = 0;
  for (size_t i = 1; i < ring.size() && !next_; ++i) {
    const int device = ring[(place + i) % ring.size()];
    if (device == options_.device) return;
    if (!finished.contains(device)) next_ = device;
  }
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
  return {options_.epoch,
          *next_,
          "",
          options_.link,
          fmt::format("no sign of life for {}{}, says {}: {}",
                      options_.dead_after_text,
                      silent.empty() ? "" : fmt::format(", nor of {}", fmt::join(silent, ", ")),
                      name(options_.device),
                      silent.empty() ? "its process was killed or its link is dead"
                                     : "their processes were killed or their links are dead")};
}

}  // namespace medley
