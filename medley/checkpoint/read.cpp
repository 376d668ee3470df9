#include "medley/checkpoint/read.h"

#include <fmt/format.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/sha256.h"
#include "medley/checkpoint/crc32c.h"
#include "medley/checkpoint/match.h"
#include "medley/checkpoint/safetensors.h"
#include "medley/checkpoint/write.h"

namespace medley {
namespace {

constexpr int64_t kMostPiecesAtOnce = 16;
constexpr size_t kDigits = 8;  // per checksum

// Finds values by kind and name.
class Inventory {
 public:
  Inventory(const Manifest& manifest, const std::string& folder) : folder_(folder) {
    for (const StoredValue& value : manifest.values) values_[{value.kind, value.name}] = &value;
  }

  std::string place_of(const WantedBoxes& wanted) const {
    return fmt::format("{}: {} \"{}\"", folder_, wanted.kind, wanted.name);
  }

  const StoredValue& find(const WantedBoxes& wanted) const {
    const auto found = values_.find({wanted.kind, wanted.name});
    const std::string expected = describe(wanted.dtype, wanted.shape);
    if (found == values_.end())
      throw Error(Blame::kCaller,
                  fmt::format("{}: found none, expected {}", place_of(wanted), expected));
    const StoredValue& value = *found->second;
    if (value.dtype != wanted.dtype || value.shape != wanted.shape)
      throw Error(Blame::kCaller,
                  fmt::format("{}: found {}, expected {}",
                              place_of(wanted),
                              describe(value.dtype, value.shape),
                              expected));
    return value;
  }

 private:
  const std::string& folder_;
  std::map<std::pair<std::string, std::string>, const StoredValue*> values_;
};

// One file of a checkpoint, by its header and the manifest.
class FileReader {
 public:
  FileReader(Files& files, const std::string& folder, const StoredFile& stored)
      : files_(files), path_(join_path(folder, stored.name)) {
    if (!files.exists(path_))
      throw Error(Blame::kCaller, fmt::format("{}: found no such file, expected one", path_));
    std::string bytes;
    header_ = read_header(files, path_, &bytes);
    if (const std::string found = sha256_hex(bytes); found != stored.header_sha256)
      throw Error(Blame::kCaller,
                  fmt::format("{}: found a header with the SHA-256 {}, expected {}",
                              path_,
                              found,
                              stored.header_sha256));
    for (const FileTensor& tensor : header_.tensors) by_name_.emplace(tensor.name, &tensor);
  }

  void read(const StoredValue& value, const TensorReads& reads) const {
    read(value, reads, ranges_of(reads, tensor_bytes(value, reads.box)));
  }
  // Reads all of a tensor, and keeps no bytes.
  void check(const StoredValue& value, int box) const {
    read(value, {0, box, {}}, {{0, tensor_bytes(value, box)}});
  }

 private:
  void read(const StoredValue& value,
            const TensorReads& reads,
            const std::vector<IndexInterval>& ranges) const {
    constexpr int64_t kBlock = kMostPiecesAtOnce * kPieceBytes;
    const FileTensor& tensor = find(value, at(reads.box));
    const std::string& checksums = checksums_of(tensor);
    for (const IndexInterval& range : ranges)
      for (int64_t begin = range.begin; begin < range.end; begin += kBlock)
        read_block(tensor, checksums, {begin, std::min(range.end, begin + kBlock)}, reads);
  }

  const FileTensor& find(const StoredValue& value, size_t box) const {
    const std::string name = tensor_name(value, box);
    const auto found = by_name_.find(name);
    if (found == by_name_.end())
      throw Error(Blame::kCaller,
                  fmt::format("{}: found no tensor \"{}\", expected one", path_, name));
    const int64_t bytes = tensor_bytes(value, static_cast<int>(box));
    if (found->second->dtype != value.dtype || found->second->size() != bytes)
      throw Error(Blame::kCaller,
                  fmt::format("{}: tensor \"{}\": found {} bytes of {}, expected {} of {}",
                              path_,
                              name,
                              found->second->size(),
                              to_string(found->second->dtype),
                              bytes,
                              to_string(value.dtype)));
    return *found->second;
  }

  const std::string& checksums_of(const FileTensor& tensor) const {
    const auto found = header_.metadata.find(checksum_key(tensor.name));
    const size_t expected = kDigits * at((tensor.size() + kPieceBytes - 1) / kPieceBytes);
    if (found == header_.metadata.end() || found->second.size() != expected)
      throw Error(Blame::kCaller,
                  fmt::format("{}: tensor \"{}\": found no checksums of {} digits, expected them",
                              path_,
                              tensor.name,
                              expected));
    return found->second;
  }

  void read_block(const FileTensor& tensor,
                  const std::string& checksums,
                  const IndexInterval& block,
                  const TensorReads& reads) const {
    const std::string bytes = files_.read_range(path_, tensor.begin + block.begin, block.size());
    for (int64_t begin = block.begin; begin < block.end; begin += kPieceBytes) {
      const auto piece = std::string_view(bytes).substr(at(begin - block.begin), at(kPieceBytes));
      const std::string found = fmt::format("{:08x}", crc32c(piece));
      const std::string expected = checksums.substr(at(begin / kPieceBytes) * kDigits, kDigits);
      if (found != expected)
        throw Error(Blame::kCaller,
                    fmt::format("{}: tensor \"{}\": bytes {} to {}: found crc32c {}, expected {}",
                                path_,
                                tensor.name,
                                begin,
                                begin + std::ssize(piece),
                                found,
                                expected));
    }
    for (const TensorReads::Part& part : reads.parts) copy(part, bytes, block);
  }

  // Copies a block's part of the runs, which are consecutive because a part's runs ascend.
  static void copy(const TensorReads::Part& part,
                   const std::string& bytes,
                   const IndexInterval& block) {
    const Runs& runs = part.in_tensor;
    int64_t low = 0, high = runs.count();
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (runs.start_of(middle) + runs.length <= block.begin)
        low = middle + 1;
      else
        high = middle;
    }
    for (int64_t run = low; run < runs.count(); ++run) {
      const int64_t start = runs.start_of(run);
      if (start >= block.end) return;
      const int64_t begin = std::max(start, block.begin);
      const int64_t end = std::min(start + runs.length, block.end);
      const int64_t first = run * runs.length + begin - start;
      scatter(bytes.data() + (begin - block.begin),
              first,
              first + end - begin,
              part.in_memory,
              part.memory);
    }
  }

  Files& files_;
  std::string path_;
  SafetensorsHeader header_;
  std::map<std::string, const FileTensor*> by_name_;
};

}  // namespace

int64_t tensor_bytes(const StoredValue& value, int box) {
  return volume(value.boxes[at(box)]) * bytes_per_element(value.dtype);
}

std::vector<std::vector<TensorReads>> plan_reads(const Manifest& manifest,
                                                 const std::string& folder,
                                                 const std::vector<WantedBoxes>& wanted) {
  std::map<std::pair<int, int>, TensorReads> reads;  // by value and box
  const Inventory inventory(manifest, folder);
  for (const WantedBoxes& each : wanted) {
    const StoredValue& value = inventory.find(each);
    const auto v = static_cast<int>(&value - manifest.values.data());
    for (BoxRead& take : plan_box_reads(Layout{value.factors, value.boxes, {}, {}},
                                        each.layout,
                                        bytes_per_element(value.dtype),
                                        inventory.place_of(each))) {
      TensorReads& tensor = reads[{v, take.from}];
      tensor.value = v;
      tensor.box = take.from;
      tensor.parts.push_back({std::move(take.in_from),
                              std::move(take.in_to),
                              each.memory.empty() ? nullptr : each.memory[at(take.to)]});
    }
  }
  std::vector<std::vector<TensorReads>> by_file(manifest.files.size());
  for (auto& [key, tensor] : reads)
    by_file[at(manifest.values[at(key.first)].files[at(key.second)])].push_back(std::move(tensor));
  return by_file;
}

std::vector<IndexInterval> ranges_of(const TensorReads& reads, int64_t bytes) {
  std::vector<bool> touched(at((bytes + kPieceBytes - 1) / kPieceBytes));
  for (const TensorReads::Part& part : reads.parts) {
    const Runs& runs = part.in_tensor;
    for (int64_t run = 0; run < runs.count(); ++run) {
      const int64_t start = runs.start_of(run);
      for (int64_t p = start / kPieceBytes; p * kPieceBytes < start + runs.length; ++p)
        touched[at(p)] = true;
    }
  }
  std::vector<IndexInterval> ranges;
  for (size_t p = 0; p < touched.size(); ++p) {
    if (!touched[p]) continue;
    const int64_t begin = static_cast<int64_t>(p) * kPieceBytes;
    const int64_t end = std::min(bytes, begin + kPieceBytes);
    if (!ranges.empty() && ranges.back().end == begin)
      ranges.back().end = end;
    else
      ranges.push_back({begin, end});
  }
  return ranges;
}

void read_checkpoint(Files& files,
                     const std::string& folder,
                     const Manifest& manifest,
                     const std::vector<WantedBoxes>& wanted) {
  const auto reads = plan_reads(manifest, folder, wanted);
  for (size_t f = 0; f < reads.size(); ++f) {
    if (reads[f].empty()) continue;
    const FileReader file(files, folder, manifest.files[f]);
    for (const TensorReads& each : reads[f]) file.read(manifest.values[at(each.value)], each);
  }
}

int64_t check_checkpoint(Files& files, const std::string& folder, const Manifest& manifest) {
  std::vector<std::vector<std::pair<const StoredValue*, int>>> boxes(manifest.files.size());
  for (const StoredValue& value : manifest.values)
    for (size_t box = 0; box < value.boxes.size(); ++box)
      boxes[at(value.files[box])].emplace_back(&value, static_cast<int>(box));
  int64_t bytes = 0;
  for (size_t f = 0; f < boxes.size(); ++f) {
    const FileReader file(files, folder, manifest.files[f]);
    for (const auto& [value, box] : boxes[f]) {
      file.check(*value, box);
      bytes += tensor_bytes(*value, box);
    }
  }
  return bytes;
}

}  // namespace medley
