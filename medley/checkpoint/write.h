#pragma once

// Writes one file of a checkpoint from memory. Knows no other writer.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/files.h"
#include "medley/boxes/runs.h"
#include "medley/checkpoint/manifest.h"

namespace medley {

// The bytes of a tensor that one checksum covers; the last piece has the rest. Reading any of them
// reads the piece.
inline constexpr int64_t kPieceBytes = 1 << 20;

// A tensor to write: runs of bytes. The memory must outlive the write, unchanged.
struct TensorSource {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const char* memory = nullptr;
  Runs runs;
};

// Returns the part of a stored value's box that is in the memory of `shard`. Requires: the box is
// of a cell of a holder of the shard.
TensorSource source_of(const StoredValue& value,
                       size_t box,
                       const FactorSizes& shard_factors,
                       const Box& shard,
                       const char* memory);

// Writes a file in pieces of a few MiB, so that background writing can pause between pieces.
// Replaces an existing file.
class TensorFileWriter {
 public:
  TensorFileWriter(Files& files,
                   const std::string& folder,
                   const std::string& name,
                   std::vector<TensorSource> tensors);

  // Writes the next piece. Returns true after the last one, with the file synced.
  bool next();
  // Requires: next() has returned true.
  StoredFile file() const;
  // Returns the bytes that remain to be read, for a checksum or to be written.
  int64_t left() const { return left_; }

 private:
  void check();
  void begin_file();
  void write();
  std::string_view piece();
  void put(std::string_view bytes);
  void flush();

  Files& files_;
  std::string name_, path_;
  std::vector<TensorSource> tensors_;
  size_t tensor_ = 0;   // the next piece's
  int64_t offset_ = 0;  // in the tensor
  int64_t left_ = 0;
  bool is_checked_ = false;
  std::string digits_;  // checksums of the current tensor
  std::map<std::string, std::string> metadata_;
  StoredFile file_;
  std::string buffer_;
  // The write buffer: small tensors share one write, and disks prefer whole blocks.
  struct Free {
    void operator()(char* memory) const;
  };
  std::unique_ptr<char[], Free> block_;
  int64_t filled_ = 0;  // used bytes
};

// Writes and syncs the file. Replaces an existing one.
StoredFile write_tensors(Files& files,
                         const std::string& folder,
                         const std::string& name,
                         const std::vector<TensorSource>& tensors);

// Reads or copies the bytes [begin, end) of the concatenated runs.
void gather(const char* memory, const Runs& runs, int64_t begin, int64_t end, char* to);
void scatter(const char* from, int64_t begin, int64_t end, const Runs& runs, char* memory);

// Returns the metadata key of a tensor's checksums: eight digits for each piece.
std::string checksum_key(const std::string& tensor);  // "crc32c:<tensor>"

}  // namespace medley
