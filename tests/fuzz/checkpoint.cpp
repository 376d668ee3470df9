// An accepted manifest prints, and parses back to the same. As a file of tensors, an accepted
// header has tensors only inside of the file, and reading them takes no more memory than the file's
// size. In a folder with correct hashes either is read, or refused by an error that begins with the
// folder.

#include <algorithm>

#include "medley/base/memory_files.h"
#include "medley/base/sha256.h"
#include "medley/checkpoint/folder.h"
#include "medley/checkpoint/manifest.h"
#include "medley/checkpoint/read.h"
#include "medley/checkpoint/safetensors.h"
#include "medley/checkpoint/write.h"
#include "tests/fuzz/fuzz.h"

using namespace medley;

namespace {

const std::string kRun = "run", kFolder = "run/step-00000001";
const std::string kFile = "a.0.0.safetensors";

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

// Returns one file, with the values w and, in two boxes, m.
Manifest sample_values() {
  Manifest manifest;
  manifest.state.step = 1;
  manifest.values = {
      {"parameter", "w", DType::kF32, {4, 6}, {4, 2, 3}, {{{0, 4}, {0, 2}, {0, 3}}}, {0}},
      {"state", "m:w", DType::kF32, {4, 6}, {24}, {{{0, 10}}, {{10, 24}}}, {0, 0}}};
  return manifest;
}

MemoryFiles sample() {
  MemoryFiles files;
  files.make_directories(kRun);
  begin_checkpoint(files, kRun, 1);
  Manifest manifest = sample_values();
  const std::string bytes(96, 'x');
  std::vector<TensorSource> sources;
  for (const StoredValue& value : manifest.values)
    for (size_t box = 0; box < value.boxes.size(); ++box)
      sources.push_back(
          source_of(value, box, value.factors, whole_box(value.factors), bytes.data()));
  manifest.files.push_back(write_tensors(files, temporary_folder(kRun, 1), kFile, sources));
  commit_checkpoint(files, kRun, manifest);
  return files;
}

void read_all(Files& files) {
  const Manifest manifest = open_checkpoint(files, kFolder);
  check_checkpoint(files, kFolder, manifest);
  std::string memory(96, '\0');
  for (const StoredValue& value : sample_values().values)
    read_checkpoint(files,
                    kFolder,
                    manifest,
                    {{value.kind,
                      value.name,
                      value.dtype,
                      value.shape,
                      {value.shape, {whole_box(value.shape)}, {}, {}},
                      {memory.data()}}});
}

void try_folder(std::string_view bytes, bool is_manifest) {
  MemoryFiles files = sample();
  std::string text(bytes);
  if (!is_manifest) {
    files.write(kFolder + "/" + kFile, bytes);
    Manifest manifest = sample_values();
    const uint64_t header = text.size() < 8 ? 0
                                            : static_cast<unsigned char>(text[0]) +
                                                  256 * static_cast<unsigned char>(text[1]);
    manifest.files = {{kFile, std::ssize(text), sha256_hex(text.substr(0, 8 + header))}};
    text = print(manifest);
  }
  files.write(kFolder + "/manifest.json", text);
  files.write(kFolder + "/COMMIT", sha256_hex(text) + "\n");
  try {
    read_all(files);
  } catch (const Error& error) {
    if (error.blame() != Blame::kCaller) throw;
    const std::string_view what = error.what();
    require(what.starts_with(kFolder), "the sentence begins with the folder");
    require(std::ranges::none_of(what, [](unsigned char c) { return c < ' '; }), "one sentence");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try_manifest(text_of(data, size));
  try_header(text_of(data, size));
  for (const bool is_manifest : {false, true}) try_folder(text_of(data, size), is_manifest);
  return 0;
}
