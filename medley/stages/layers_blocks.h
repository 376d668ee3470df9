#pragma once

// Repeats in a sequence of ops, for find_layers().

#include <cstdint>
#include <vector>

#include "medley/stages/layers.h"
#include "medley/stages/layers_tokens.h"

namespace medley {

struct Sequence {
  std::vector<Token> token;
  struct Source {
    int32_t position = 0, result = 0;
  };
  std::vector<std::vector<Source>> sources;  // [position], in the order of the operands
  std::vector<double> flops;                 // [position]
  std::vector<int64_t> bytes;                // [cut] that cross before that position
};

// Returns the runs of equal blocks with flops, by position: see layers.h.
std::vector<RepeatedBlock> find_blocks(const Sequence& sequence);

// Returns the cuts that divide [begin, end) into at most `count` layers: see layers.h.
std::vector<int32_t> divide(const Sequence& sequence, int32_t begin, int32_t end, int count);

}  // namespace medley
