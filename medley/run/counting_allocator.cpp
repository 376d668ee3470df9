#include "medley/run/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace medley {
namespace {

// Stores sizes apart from the memory, since a kernel that manages its own memory (raw_allocate)
// frees by address only.
class Counts {
 public:
  void add(void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    int64_t& size = sizes_[data];  // nonzero if freed without notice
    now_.live += static_cast<int64_t>(bytes) - size;
    size = static_cast<int64_t>(bytes);
    now_.peak = std::max(now_.peak, now_.live);
  }
  void remove(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(data);
    if (found == sizes_.end()) return;  // made before counting began
    now_.live -= found->second;
    sizes_.erase(found);
  }
  AllocatedBytes read() const {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    now_.peak = now_.live;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<void*, int64_t> sizes_;
  AllocatedBytes now_;
};

// Returns the counts. They are never destroyed, because tensors may outlive everything.
Counts& counts() {
  static auto* all = new Counts;
  return *all;
}

// For release().  NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
c10::Allocator* allocator_below = nullptr;

void release(void* data) {
  counts().remove(data);
  allocator_below->raw_deallocate(data);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = allocator_below->raw_allocate(bytes);
    if (data) counts().add(data, bytes);
    return {data, data, release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

void count_allocations() {
  constexpr uint8_t kPriority = 100;
  static CountingAllocator counting;
  if (allocator_below) return;
  allocator_below = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&counting, kPriority);
}

AllocatedBytes allocated_bytes() { return counts().read(); }

void reset_peak() { counts().reset_peak(); }

}  // namespace medley
