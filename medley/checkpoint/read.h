#pragma once

// Reads boxes of values out of a checkpoint, whatever plan wrote it: only pieces (write.h) that
// have some of what is wanted, each once, each checked. Knows nothing of plans.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "medley/base/files.h"
#include "medley/checkpoint/manifest.h"
#include "medley/checkpoint/take.h"

namespace medley {

// Boxes of one value that somebody wants, one piece of memory for each.
struct WantedBoxes {
  std::string kind, name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  Layout layout;              // box_of is not read
  std::vector<char*> memory;  // [box]; null where only ranges are asked for
};

// What of one tensor of a file goes where.
struct TensorReads {
  int value = 0, box = 0;  // of the manifest
  struct Part {
    Runs in_tensor, in_memory;
    char* memory;
  };
  std::vector<Part> parts;
};

// [file] by tensors. Throws Error(kCaller) "<folder>: <kind> "<name>": found ..., expected ..." for
// a value that is not there or has another type or shape.
std::vector<std::vector<TensorReads>> plan_reads(const Manifest& manifest,
                                                 const std::string& folder,
                                                 const std::vector<WantedBoxes>& wanted);

// The pieces of a tensor of so many bytes that reads touch, as ranges of bytes, merged, in order.
std::vector<IndexInterval> ranges_of(const TensorReads& reads, int64_t tensor_bytes);
int64_t tensor_bytes(const StoredValue& value, int box);

// Throws Error(kCaller) naming file and tensor for what is not what the manifest says, with both
// checksums where they differ.
void read_checkpoint(Files& files,
                     const std::string& folder,
                     const Manifest& manifest,
                     const std::vector<WantedBoxes>& wanted);

// Reads and checks everything. Returns how many bytes of tensors there are.
int64_t check_checkpoint(Files& files, const std::string& folder, const Manifest& manifest);

}  // namespace medley
