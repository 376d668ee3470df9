#pragma once

// Arrays and pools of items in memory that several processes may map at different addresses. Items
// have numbers from 1 on; 0 is none, so zeroed memory is a set of empty pools.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {

// Places arrays in sequence, each aligned to 16 bytes. Without memory it counts the needed bytes.
class MemoryLayout {
 public:
  explicit MemoryLayout(std::byte* base) : base_(reinterpret_cast<uintptr_t>(base)) {}
  template <typename T>
  T* place(int64_t count) {
    T* result = reinterpret_cast<T*>(base_ + size_);
    size_ += (at(count) * sizeof(T) + 15) / 16 * 16;
    return result;
  }
  size_t size() const { return size_; }

 private:
  uintptr_t base_;
  size_t size_ = 0;
};

// Requires of T: `int32_t next`, which the pool uses for free items: the next free one, or 0 (fresh
// memory) for the item's successor, so unused memory stays untouched.
template <typename T>
class Pool {
 public:
  // `what`: for error messages.
  Pool(MemoryLayout& layout, int32_t room, const char* what)
      : free_(layout.place<int32_t>(1)),
        items_(layout.place<T>(int64_t{room} + 1)),
        room_(room),
        what_(what) {}

  T& operator[](int32_t index) { return items_[index]; }
  const T& operator[](int32_t index) const { return items_[index]; }

  // Returns the number of a zeroed item. Throws Error(kUs) if the pool is full.
  int32_t take() {
    const int32_t index = *free_ == 0 ? 1 : *free_;
    if (index > room_)
      throw Error(Blame::kUs, fmt::format("network: no more room for {}: {}", what_, room_));
    T& item = items_[index];
    *free_ = item.next == 0 ? index + 1 : item.next;
    item = T{};
    return index;
  }
  void give_back(int32_t index) {
    items_[index].next = *free_;
    *free_ = index;
  }

 private:
  int32_t* free_;  // first free item, 0: item 1
  T* items_;
  int32_t room_;
  const char* what_;
};

}  // namespace medley
