#pragma once

// The layers of a model: where a pipeline may cut it. Found in the joint graph alone, without names
// or markers: repeated blocks by structure, and in each block a few fine layers.
//
//   sequence    e | n q a o + n u g d + | n q a o + n u g d + | ... | n h s      forward ops
//   blocks        |       block 0       |       block 1       | ... |
//   layers   [ e ][  0.0    ][   0.1   ][  1.0    ][   1.1   ]  ...  [ n h s ]
//
// Bytes crossing at a cut are those of all values made before it and read after it, skip
// connections counted at each cut that they pass.
//
//   blocks   a run is a period P with op i like op i - P over at least one period: name, arguments
//            (no site of dropout), types and connections, where a connection is the distance to
//            the op that is read, or the same op, or one before the run. Each block reads what
//            the one before it makes. The run of most flops is taken, then that of the rest, and so
//            on. Where a run begins within its slack: fewest
//            bytes at the cuts between blocks, then most whole blocks.
//   layers   k of each block: fewest bytes at the worst cut such that each has a matmul, attention
//            or convolution and at most twice the mean of their flops; then the least flops of the
//            largest. What repeats nowhere is divided likewise, into as many as have the flops of
//            those of the blocks, and at least one. Parts of all these are found as layers of a
//            block are.
//
// Knows nothing of devices.

#include <cstdint>
#include <string>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/stages/stages.h"

namespace medley {

struct LayerOptions {
  int per_block = 2;  // layers of each repeated block: fewer where it has fewer heavy ops
  int parts = 1;      // of each layer: fewer likewise
  int without = 16;   // layers of a model that repeats nothing
  int64_t rows = 1;   // at which bytes and flops are compared
};

struct Layer {
  int32_t begin = 0, end = 0;  // positions
  int32_t block = kNone;       // into Layers::blocks, or kNone
  // Of layers with one id, the ops that are at their positions, backward ones included, are the
  // same but for names. 0, 1, ... by first appearance.
  int32_t structure = 0;
  double flops = 0, backward_flops = 0;  // for LayerOptions::rows
  std::vector<ValueId> up, down;         // values that cross the cut after it
  std::vector<ValueId> parameters;       // that it reads, in the order of the inputs
  std::string module;                    // the path that all its heavy ops have in common
};

// A run of equal blocks: block i has the positions begin + i * length onwards.
struct RepeatedBlock {
  int32_t begin = 0, length = 0, count = 0;
  bool operator==(const RepeatedBlock&) const = default;
};

struct Layers {
  std::vector<Layer> layers;
  std::vector<RepeatedBlock> blocks;  // by position
};

Layers find_layers(const Graph& graph,
                   const Positions& positions,
                   const LayerOptions& options = {});

// The cuts of stages that begin with the given layers (the first is not named), for partition().
std::vector<int32_t> cuts_at(const Layers& layers, const std::vector<int>& first_layers);

}  // namespace medley
