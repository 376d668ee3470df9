#pragma once

// Reads boxes of values out of a checkpoint of any plan: only the pieces (write.h) with wanted
// elements, each read and checked once. Knows nothing of plans.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "medley/base/files.h"
#include "medley/checkpoint/manifest.h"
#include "medley/checkpoint/read_plan.h"

namespace medley {

// The wanted boxes of one value, with memory for each.
struct WantedBoxes {
  std::string kind, name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  Layout layout;              // box_of is not read
  std::vector<char*> memory;  // [box]; null if only ranges are needed
};

// The reads from one tensor of a file.
struct TensorReads {
  int value = 0, box = 0;  // indices in the manifest
  struct Part {
    Runs in_tensor, in_memory;
    char* memory;
  };
  std::vector<Part> parts;
};

// Returns the read plan: [file] by tensors. Throws Error(kCaller) "<folder>: <kind> "<name>": found
// ..., expected ..." for a missing value and for another type or shape.
std::vector<std::vector<TensorReads>> plan_reads(const Manifest& manifest,
                                                 const std::string& folder,
                                                 const std::vector<WantedBoxes>& wanted);

// Returns the pieces of a tensor of `tensor_bytes` bytes that the reads touch, as merged, ascending
// byte ranges.
std::vector<IndexInterval> ranges_of(const TensorReads& reads, int64_t tensor_bytes);
int64_t tensor_bytes(const StoredValue& value, int box);

// Throws Error(kCaller) naming file and tensor for data that contradicts the manifest, with both
// checksums if they differ.
void read_checkpoint(Files& files,
                     const std::string& folder,
                     const Manifest& manifest,
                     const std::vector<WantedBoxes>& wanted);

// Reads and checks everything. Returns the number of bytes of tensors.
int64_t check_checkpoint(Files& files, const std::string& folder, const Manifest& manifest);

}  // namespace medley
