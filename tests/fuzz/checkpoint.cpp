// A manifest that is accepted prints, and parses back to the same. The same bytes as a file of
// tensors: a header that is accepted has tensors inside of the file only, and reading what it names
// takes no more memory than the file has bytes.

#include "medley/base/memory_files.h"
#include "medley/checkpoint/manifest.h"
#include "medley/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

using namespace medley;

namespace {

void try_manifest(std::string_view text) {
  Manifest manifest;
  if (!accepts([&] { manifest = parse_manifest(text, "fuzz.json"); })) return;
  const std::string printed = print(manifest);
  const Manifest again = parse_manifest(printed, "printed.json");
  require_equal(print(again), printed, "what is printed parses back equal");
  for (const StoredFile& file : manifest.files)
    require(file.name.find('/') == std::string::npos, "a file in this folder");
}

void try_header(std::string_view bytes) {
  MemoryFiles files;
  files.write("x", bytes);
  SafetensorsHeader header;
  if (!accepts([&] { header = read_header(files, "x"); })) return;
  int64_t sum = 0;
  for (const FileTensor& tensor : header.tensors) {
    require(0 <= tensor.begin && tensor.begin <= tensor.end, "a tensor begins before it ends");
    require(tensor.end <= static_cast<int64_t>(bytes.size()), "a tensor ends in the file");
    sum += tensor.size();
  }
  require(sum <= static_cast<int64_t>(bytes.size()), "no byte is of two tensors");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try_manifest(text_of(data, size));
  try_header(text_of(data, size));
  return 0;
}
