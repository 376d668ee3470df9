#include "medley/checkpoint/write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "medley/base/at.h"
#include "medley/base/sha256.h"
#include "medley/checkpoint/crc32c.h"
#include "medley/checkpoint/safetensors.h"

namespace medley {
namespace {

// Calls copy(place in memory, offset from begin, length) for each stretch of neighbours.
template <typename Copy>
void for_each_stretch(const Runs& runs, int64_t begin, int64_t end, Copy copy) {
  for (int64_t next = begin; next < end;) {
    const int64_t run = next / runs.length, inside = next % runs.length;
    const int64_t length = std::min(runs.length - inside, end - next);
    copy(runs.start_of(run) + inside, next - begin, length);
    next += length;
  }
}

// The bytes of a piece: where they lie if they are neighbours, else gathered.
std::string_view piece_of(const TensorSource& tensor,
                          int64_t begin,
                          int64_t end,
                          std::string& buffer) {
  if (tensor.runs.count() == 1) return {tensor.memory + tensor.runs.start + begin, at(end - begin)};
  buffer.resize(at(end - begin));
  gather(tensor.memory, tensor.runs, begin, end, buffer.data());
  return buffer;
}

template <typename Use>
void for_each_piece(const TensorSource& tensor, Use use) {
  std::string buffer;
  const int64_t total = tensor.runs.total();
  for (int64_t begin = 0; begin < total; begin += kPieceBytes)
    use(piece_of(tensor, begin, std::min(begin + kPieceBytes, total), buffer));
}

std::string checksums_of(const TensorSource& tensor) {
  std::string digits;
  for_each_piece(tensor, [&](std::string_view piece) {
    fmt::format_to(std::back_inserter(digits), "{:08x}", crc32c(piece));
  });
  return digits;
}

}  // namespace

std::string checksum_key(const std::string& tensor) { return "crc32c:" + tensor; }

void gather(const char* memory, const Runs& runs, int64_t begin, int64_t end, char* to) {
  for_each_stretch(runs, begin, end, [&](int64_t place, int64_t offset, int64_t length) {
    std::memcpy(to + offset, memory + place, at(length));
  });
}

void scatter(const char* from, int64_t begin, int64_t end, const Runs& runs, char* memory) {
  for_each_stretch(runs, begin, end, [&](int64_t place, int64_t offset, int64_t length) {
    std::memcpy(memory + place, from + offset, at(length));
  });
}

TensorSource source_of(const StoredValue& value,
                       size_t box,
                       const FactorSizes& shard_factors,
                       const Box& shard,
                       const char* memory) {
  const Box& stored = value.boxes[box];
  std::vector<int64_t> shape = value.shape;
  if (value.boxes.size() > 1) {
    shape.clear();
    for (const IndexInterval& each : stored) shape.push_back(each.size());
  }
  return {tensor_name(value, box),
          value.dtype,
          shape,
          memory,
          runs_in(shard_factors, shard, value.factors, stored, bytes_per_element(value.dtype))};
}

StoredFile write_tensors(Files& files,
                         const std::string& folder,
                         const std::string& name,
                         const std::vector<TensorSource>& tensors) {
  const std::string path = join_path(folder, name);
  SafetensorsHeader header{{{"format", "pt"}, {"piece_bytes", fmt::format("{}", kPieceBytes)}}, {}};
  for (const TensorSource& each : tensors) {
    header.tensors.push_back({.name = each.name, .dtype = each.dtype, .shape = each.shape});
    header.metadata.emplace(checksum_key(each.name), checksums_of(each));
  }
  const std::string front = print_header(header);
  files.write(path, front);
  // Small tensors go together: a call to a file system may take as long as a megabyte does.
  std::string together;
  const auto flush = [&] {
    if (!together.empty()) files.append(path, together);
    together.clear();
  };
  for (const TensorSource& each : tensors)
    for_each_piece(each, [&](std::string_view piece) {
      together += piece;
      if (std::ssize(together) >= 4 * kPieceBytes) flush();
    });
  flush();
  files.sync(path);
  const int64_t end = header.tensors.empty() ? std::ssize(front) : header.tensors.back().end;
  return {name, end, sha256_hex(front)};
}

}  // namespace medley
