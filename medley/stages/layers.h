#pragma once

// The layers of a model, at which a pipeline may cut it. Found from the joint graph alone, without
// names or markers: repeated blocks by structure, and in each block a few fine layers.
//
//   sequence    e | n q a o + n u g d + | n q a o + n u g d + | ... | n h s      forward ops
//   blocks        |       block 0       |       block 1       | ... |
//   layers   [ e ][  0.0    ][   0.1   ][  1.0    ][   1.1   ]  ...  [ n h s ]
//
// The bytes at a cut are those of all values made before it and read after it. Skip connections
// count at each cut that they cross.
//
//   blocks   A run has a period P such that op i equals op i - P over at least one period: name,
//            arguments (except the site of dropout), types and connections. A connection is the
//            distance to the source op, or the same op, or one before the run. Each block reads
//            results of the one before it. The run with most flops is taken, then that of the
//            rest, and so on. Within its slack a run begins at the fewest bytes at the cuts
//            between blocks, then with most whole blocks.
//   layers   k per block: fewest bytes at the worst cut such that each has a matmul, attention or
//            convolution and at most twice the mean of their flops; then the smallest largest one.
//            Ops outside of blocks are divided likewise, into layers with the flops of those of
//            blocks, and at least one. Parts are found like the layers of a block.
//
// Knows nothing of devices.

#include <cstdint>
#include <string>
#include <vector>

#include "medley/graph/graph.h"
#include "medley/stages/stages.h"

namespace medley {

struct LayerOptions {
  int per_block = 2;  // per repeated block; fewer with fewer heavy ops
  int parts = 1;      // per layer; fewer with fewer heavy ops
  int without = 16;   // layers of a model without repeated blocks
  int64_t rows = 1;   // for comparing bytes and flops
};

struct Layer {
  int32_t begin = 0, end = 0;  // positions
  int32_t block = kNone;       // into Layers::blocks, or kNone
  // Layers with one id have equal ops, backward ones included, except for names. Ids 0, 1, ... are
  // assigned by first appearance.
  int32_t structure = 0;
  double flops = 0, backward_flops = 0;  // for LayerOptions::rows
  std::vector<ValueId> up, down;         // values that cross the cut after it
  std::vector<ValueId> parameters;       // read by it, in the order of the inputs
  std::string module;                    // common path of its heavy ops
};

// A run of equal blocks: block i starts at position begin + i * length.
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

// Returns the cuts of stages that begin with the given layers (all but the first), for partition().
std::vector<int32_t> cuts_at(const Layers& layers, const std::vector<int>& first_layers);

}  // namespace medley
