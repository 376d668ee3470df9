#pragma once

// Counts the bytes of tensors that are alive on one device and refuses what does not fit. Views and
// in-place updates share the storage of what they are made of. Knows nothing of real memory.
// Follows the same rules as memory_use() (program/memory.h), but along the real run.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "medley/program/program.h"

namespace medley {

class MemoryMeter {
 public:
  struct Storage;
  using Held = std::shared_ptr<Storage>;
  using Slots = std::vector<Held>;  // [value], of a frame

  MemoryMeter(std::string device, int64_t capacity)
      : device_(std::move(device)), capacity_(capacity) {}

  // Returns storage that counts until its last holder lets go. Throws Error(kCaller) naming device,
  // what, needed and available bytes. `computed`: by an op.
  Held take(int64_t bytes, const std::string& what, bool computed = false);
  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }
  int64_t capacity() const { return capacity_; }

 private:
  std::string device_;
  int64_t capacity_, live_ = 0, peak_ = 0;
};

struct MemoryMeter::Storage {
  Storage(MemoryMeter& of, int64_t size) : meter(of), bytes(size) { meter.live_ += bytes; }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  ~Storage() { meter.live_ -= bytes; }
  MemoryMeter& meter;
  int64_t bytes;
  bool computed = false;
};

}  // namespace medley
