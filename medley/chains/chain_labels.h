#pragma once

// Stores chains during the search: labels in buckets, by used devices. Private to chain_search.cpp.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "medley/base/at.h"
#include "medley/chains/pipeline.h"

namespace medley::pipeline {

// Counts devices of the first kMostCountedPools pools, packed into one word.
class Used {
 public:
  Used() = default;
  Used(int pool, int devices)
      : counts_(pool < kMostCountedPools ? Word{static_cast<unsigned>(devices)} << (pool * kBits)
                                         : 0) {}
  Used operator+(Used other) const { return Used(counts_ + other.counts_); }
  int of(int pool) const {
    return pool < kMostCountedPools ? static_cast<int>(counts_ >> (pool * kBits) & kCount) : 0;
  }
  // Returns whether no pool's count exceeds `most`.
  bool within(Used most) const {
    return (((most.counts_ | kHighBits) - counts_) & kHighBits) == kHighBits;
  }
  // If a value is within another one, it compares less or equal.
  auto operator<=>(const Used&) const = default;
  size_t hash() const {
    const auto folded = static_cast<uint64_t>(counts_ >> 64) * 0x9e3779b97f4a7c15u;
    return (folded ^ static_cast<uint64_t>(counts_)) * 0xff51afd7ed558ccdu >> 32;
  }

 private:
  using Word = unsigned __int128;
  static constexpr int kBits = 128 / kMostCountedPools;
  static constexpr Word kCount = (Word{1} << (kBits - 1)) - 1;
  static_assert(kCount == kMostCountedDevices);
  static constexpr Word kHighBits = [] {
    Word bits = 0;
    for (int pool = 0; pool < kMostCountedPools; ++pool)
      bits |= Word{1} << (pool * kBits + kBits - 1);
    return bits;
  }();
  explicit Used(Word counts) : counts_(counts) {}
  Word counts_ = 0;
};

struct Label {
  int64_t cost = 0, end = 0, depth = 0;
  int32_t behind = -1;  // label of the later stages; -1: none
  int32_t option = 0;
  auto operator<=>(const Label&) const = default;
};

inline bool never_worse(const Label& a, const Label& b) {
  return a.cost <= b.cost && a.end <= b.end && a.depth <= b.depth;
}

// Chains on the same devices, by ascending cost: labels [begin, end).
struct Bucket {
  Used used;
  size_t place = 0;       // AheadCounted::place_of() of the devices left
  unsigned finished = 0;  // bit set of pools closed to earlier stages
  int32_t begin = 0, end = 0;
  int64_t cost = 0;  // first label's
};

// Bucket under construction.
struct Making {
  Used used;
  size_t place = 0;
  unsigned finished = 0;
  std::vector<Label> labels;
  std::optional<Label> better;  // excluded the last label; tested first
};

// Chains that begin at one layer and pool, by used devices.
class Makings {
 public:
  Making& of(Used used, size_t place, unsigned finished) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    size_t slot = used.hash() & (slots_.size() - 1);
    while (slots_[slot] >= 0 && all_[at(slots_[slot])].used != used)
      slot = (slot + 1) & (slots_.size() - 1);
    if (slots_[slot] < 0) {
      slots_[slot] = static_cast<int32_t>(size_);
      if (size_ == all_.size()) all_.emplace_back();
      all_[size_].used = used;
      all_[size_].place = place;
      all_[size_].better.reset();
      all_[size_++].finished = finished;
    }
    return all_[at(slots_[slot])];
  }
  // Returns the non-empty buckets, fewer devices first.
  std::vector<Making*> sorted() {
    std::vector<Making*> some;
    for (size_t i = 0; i < size_; ++i)
      if (!all_[i].labels.empty()) some.push_back(&all_[i]);
    std::ranges::sort(some, {}, [](const Making* making) { return making->used; });
    return some;
  }
  void clear() {
    for (size_t i = 0; i < size_; ++i) all_[i].labels.clear();
    std::ranges::fill(slots_, -1);
    size_ = 0;
  }

 private:
  void grow() {
    slots_.assign(std::max<size_t>(16, 2 * slots_.size()), -1);
    for (size_t i = 0; i < size_; ++i) {
      size_t slot = all_[i].used.hash() & (slots_.size() - 1);
      while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = static_cast<int32_t>(i);
    }
  }
  std::vector<Making> all_;  // the first `size_` are in use; the rest keep their memory
  std::vector<int32_t> slots_;
  size_t size_ = 0;
};

}  // namespace medley::pipeline
