#pragma once

// Writes one file of a checkpoint from memory. Knows nothing of who else writes.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/files.h"
#include "medley/boxes/runs.h"
#include "medley/checkpoint/manifest.h"

namespace medley {

// A checksum covers so many bytes of a tensor, the last one of it what is left: whoever needs one
// of them reads all.
inline constexpr int64_t kPieceBytes = 1 << 20;

// A tensor to write: runs of bytes of some memory. It has to last, and not to change.
struct TensorSource {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const char* memory = nullptr;
  Runs runs;
};

// Returns what of a box of a stored value the memory has that keeps `shard`. Requires: the box is
// of a cell of who has the shard.
TensorSource source_of(const StoredValue& value,
                       size_t box,
                       const FactorSizes& shard_factors,
                       const Box& shard,
                       const char* memory);

// Writes a file in pieces of a few MiB, so that whoever writes beside other work can stop between
// two of them. A file that is there is replaced.
class TensorFileWriter {
 public:
  TensorFileWriter(Files& files,
                   const std::string& folder,
                   const std::string& name,
                   std::vector<TensorSource> tensors);

  // Does the next piece. Returns whether that was the last one: the file is written and synced.
  bool next();
  // Requires: next() has returned true.
  StoredFile file() const;
  // Bytes that are still to be read, for a checksum or to be written.
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
  size_t tensor_ = 0;   // where the next piece begins
  int64_t offset_ = 0;  // in it
  int64_t left_ = 0;
  bool is_checked_ = false;
  std::string digits_;  // of the tensor that is being checked
  std::map<std::string, std::string> metadata_;
  StoredFile file_;
  std::string buffer_;
  // What is written at once: small tensors go together, and disks take whole blocks best.
  struct Free {
    void operator()(char* memory) const;
  };
  std::unique_ptr<char[], Free> block_;
  int64_t filled_ = 0;  // bytes of it
};

// Writes and syncs the file; replaces one that is there.
StoredFile write_tensors(Files& files,
                         const std::string& folder,
                         const std::string& name,
                         const std::vector<TensorSource>& tensors);

// Reads or copies the bytes [begin, end) of what runs enumerate, one after the other.
void gather(const char* memory, const Runs& runs, int64_t begin, int64_t end, char* to);
void scatter(const char* from, int64_t begin, int64_t end, const Runs& runs, char* memory);

// The checksums of a tensor in the metadata of its file: eight digits for each piece.
std::string checksum_key(const std::string& tensor);  // "crc32c:<tensor>"

}  // namespace medley
