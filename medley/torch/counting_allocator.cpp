#include "medley/torch/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>

namespace medley {
namespace {

struct Counts {
  std::atomic<int64_t> live{0}, peak{0};

  void add(int64_t bytes) {
    const int64_t now = live += bytes;
    int64_t seen = peak;
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
  }
};

Counts& counts() {
  static Counts all;
  return all;
}

// What a tensor's memory points to: the memory of the allocator below, and its size.
struct Counted {
  c10::DataPtr data;
  int64_t bytes;
};

void release(void* context) {
  auto* counted = static_cast<Counted*>(context);
  counts().add(-counted->bytes);
  delete counted;
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* below) : below_(below) {}

  c10::DataPtr allocate(size_t bytes) override {
    auto* counted = new Counted{below_->allocate(bytes), static_cast<int64_t>(bytes)};
    counts().add(counted->bytes);
    return {counted->data.get(), counted, release, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* below_;
};

}  // namespace

void count_allocations() {
  constexpr uint8_t kPriority = 100;
  static CountingAllocator counting(c10::GetCPUAllocator());
  c10::SetCPUAllocator(&counting, kPriority);
}

AllocatedBytes allocated_bytes() { return {counts().live, counts().peak}; }

void reset_peak() { counts().peak = counts().live.load(); }

}  // namespace medley
