#pragma once

// The header of a safetensors file (https://huggingface.co/docs/safetensors): its length in eight
// bytes, JSON, then the tensors. Foreign files obey the same rules. Knows nothing of checkpoints.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/files.h"
#include "medley/graph/dtype.h"

namespace medley {

struct FileTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // in the file
  int64_t size() const { return end - begin; }
  bool operator==(const FileTensor&) const = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<FileTensor> tensors;  // by position
};

// The largest header, in bytes.
inline constexpr int64_t kMostHeaderBytes = int64_t{1} << 26;

// Returns the bytes in front of the tensors, padded to a multiple of eight, and sets each tensor's
// begin and end, in their order.
std::string print_header(SafetensorsHeader& header);

// Throws Error(kCaller) "<path>: ...: found ..., expected ..." for tensors outside of the file,
// overlaps, gaps, and sizes that contradict the shape. `bytes`: if not null, receives the raw
// header.
SafetensorsHeader read_header(Files& files, const std::string& path, std::string* bytes = nullptr);

}  // namespace medley
