#pragma once

// The interface to a key-value store shared by all devices, for the hash handshake, failures and
// heartbeats. Real: c10d's TCP store. Fake: in memory. Thread-safe. An unreachable store is
// Error(kEnvironment).

#include <chrono>
#include <optional>
#include <string>

namespace medley {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Sets the key unless it has a value. Returns its value afterwards: the first setter wins.
  virtual std::string set_first(const std::string& key, const std::string& value) = 0;
  // Appends to the value, which is initially empty, atomically.
  virtual void append(const std::string& key, const std::string& text) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;  // does not wait
  // Throws Error(kEnvironment) naming the key after the time-out.
  virtual std::string wait(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

}  // namespace medley
