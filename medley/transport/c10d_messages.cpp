#include "medley/transport/c10d_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/transport/peer_error.h"

namespace medley {

void Abort::set(const std::string& cause) {
  const std::scoped_lock lock(mutex_);
  if (!cause_) cause_ = cause;
  for (const Work& message : messages_) message->abort();
}

std::optional<std::string> Abort::cause() const {
  const std::scoped_lock lock(mutex_);
  return cause_;
}

bool Abort::remember(const Work& message) {
  const std::scoped_lock lock(mutex_);
  if (!cause_) messages_.insert(message);
  return !cause_;
}

void Abort::forget(const Work& message) {
  const std::scoped_lock lock(mutex_);
  messages_.erase(message);
}

Error Waiting::error(const std::exception& cause) const {
  return {Blame::kEnvironment,
          fmt::format("{}: {}", where, peer_error(cause.what(), names->peers))};
}

Error Waiting::late() const {
  return {Blame::kEnvironment, fmt::format("{}: not done within {} ms", where, timeout.count())};
}

std::string over(const std::vector<int>& devices, const NetworkNames& names) {
  std::string members;
  for (int device : devices) {
    const auto name = names.devices.find(device);
    if (!members.empty()) members += ", ";
    members += name == names.devices.end() ? fmt::format("device {}", device) : name->second;
  }
  return fmt::format(
      "over {}{}{}", members, names.interface.empty() ? "" : " through ", names.interface);
}

void finish(const std::vector<Work>& messages, const Waiting& waiting) {
  const auto throw_if_aborted = [&] {
    if (auto cause = waiting.abort->cause()) throw Error(Blame::kEnvironment, "aborted: " + *cause);
  };
  const auto end = std::chrono::steady_clock::now() + waiting.timeout;
  for (const Work& message : messages) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    try {
      if (!waiting.abort->remember(message)) break;
      message->wait(std::max(left, std::chrono::milliseconds(1)));
      waiting.abort->forget(message);
    } catch (const std::exception& cause) {
      waiting.abort->forget(message);
      throw_if_aborted();
      if (std::chrono::steady_clock::now() >= end) throw waiting.late();
      throw waiting.error(cause);
    }
  }
  throw_if_aborted();
}

}  // namespace medley
