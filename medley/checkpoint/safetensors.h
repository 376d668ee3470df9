#pragma once

// The header of a safetensors file (https://huggingface.co/docs/safetensors): eight bytes of
// length, JSON, then the tensors one after the other. Knows nothing of checkpoints; whole files
// that others wrote are read and refused by the same rules.

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
  std::vector<FileTensor> tensors;  // by where they lie
};

// No header is longer.
inline constexpr int64_t kMostHeaderBytes = int64_t{1} << 26;

// Returns the bytes in front of the tensors, padded to a multiple of eight, and sets where each
// begins and ends, in their order.
std::string print_header(SafetensorsHeader& header);

// Throws Error(kCaller) "<path>: ...: found ..., expected ..." for what is no such file: tensors
// outside of it, over one another or with bytes between them, sizes that are not those of the
// shape. `bytes`: if not null, gets the header as it stands in the file.
SafetensorsHeader read_header(Files& files, const std::string& path, std::string* bytes = nullptr);

}  // namespace medley
