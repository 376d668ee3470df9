#include "medley/checkpoint/write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/sha256.h"
#include "medley/checkpoint/crc32c.h"
#include "medley/checkpoint/safetensors.h"

namespace medley {
namespace {

// Calls copy(address, offset from begin, length) for each contiguous stretch.
template <typename Copy>
void for_each_stretch(const Runs& runs, int64_t begin, int64_t end, Copy copy) {
  for (int64_t next = begin; next < end;) {
    const int64_t run = next / runs.length, inside = next % runs.length;
    const int64_t length = std::min(runs.length - inside, end - next);
    copy(runs.start_of(run) + inside, next - begin, length);
    next += length;
  }
}

constexpr int64_t kWritten = 4 * kPieceBytes;  // bytes per write
constexpr std::align_val_t kAligned{Files::kBlockBytes};

}  // namespace

void TensorFileWriter::Free::operator()(char* memory) const {
  ::operator delete[](memory, kAligned);
}

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

TensorFileWriter::TensorFileWriter(Files& files,
                                   const std::string& folder,
                                   const std::string& name,
                                   std::vector<TensorSource> tensors)
    : files_(files), name_(name), path_(join_path(folder, name)), tensors_(std::move(tensors)) {
  for (const TensorSource& each : tensors_) left_ += 2 * each.runs.total();
}

bool TensorFileWriter::next() {
  if (tensor_ < tensors_.size()) {
    is_checked_ ? write() : check();
    return false;
  }
  if (!is_checked_) {
    begin_file();
    return false;
  }
  flush();
  block_.reset();
  files_.sync(path_);
  return true;
}

StoredFile TensorFileWriter::file() const { return file_; }

// Returns the tensor's next checksummed bytes, in place if contiguous, else gathered.
std::string_view TensorFileWriter::piece() {
  const TensorSource& tensor = tensors_[tensor_];
  const int64_t begin = offset_, end = std::min(begin + kPieceBytes, tensor.runs.total());
  offset_ = end;
  left_ -= end - begin;
  if (tensor.runs.count() == 1) return {tensor.memory + tensor.runs.start + begin, at(end - begin)};
  buffer_.resize(at(end - begin));
  gather(tensor.memory, tensor.runs, begin, end, buffer_.data());
  return buffer_;
}

void TensorFileWriter::check() {
  const TensorSource& tensor = tensors_[tensor_];
  if (offset_ < tensor.runs.total())
    fmt::format_to(std::back_inserter(digits_), "{:08x}", crc32c(piece()));
  if (offset_ < tensor.runs.total()) return;
  metadata_.emplace(checksum_key(tensor.name), std::exchange(digits_, {}));
  ++tensor_;
  offset_ = 0;
}

void TensorFileWriter::begin_file() {
  SafetensorsHeader header{std::move(metadata_), {}};
  header.metadata.emplace("format", "pt");
  header.metadata.emplace("piece_bytes", fmt::format("{}", kPieceBytes));
  for (const TensorSource& each : tensors_)
    header.tensors.push_back({.name = each.name, .dtype = each.dtype, .shape = each.shape});
  const std::string front = print_header(header);
  const int64_t end = header.tensors.empty() ? std::ssize(front) : header.tensors.back().end;
  file_ = {name_, end, sha256_hex(front)};
  is_checked_ = true;
  tensor_ = 0;
  block_.reset(static_cast<char*>(::operator new[](kWritten, kAligned)));
  files_.write(path_, "");
  put(front);
}

void TensorFileWriter::put(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), at(kWritten - filled_));
    std::memcpy(block_.get() + filled_, bytes.data(), count);
    filled_ += static_cast<int64_t>(count);
    bytes.remove_prefix(count);
    if (filled_ == kWritten) flush();
  }
}

void TensorFileWriter::flush() {
  if (filled_ > 0) files_.append(path_, {block_.get(), at(filled_)});
  filled_ = 0;
}

void TensorFileWriter::write() {
  const TensorSource& tensor = tensors_[tensor_];
  const int64_t begin = offset_;
  const int64_t count = std::min(kWritten - filled_, tensor.runs.total() - begin);
  gather(tensor.memory, tensor.runs, begin, begin + count, block_.get() + filled_);
  offset_ += count;
  left_ -= count;
  filled_ += count;
  if (filled_ == kWritten) flush();
  if (offset_ < tensor.runs.total()) return;
  ++tensor_;
  offset_ = 0;
}

StoredFile write_tensors(Files& files,
                         const std::string& folder,
                         const std::string& name,
                         const std::vector<TensorSource>& tensors) {
  TensorFileWriter writer(files, folder, name, tensors);
  while (!writer.next()) {
  }
  return writer.file();
}

}  // namespace medley
