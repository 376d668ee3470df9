#include "medley/checkpoint/folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/memory_files.h"
#include "medley/checkpoint/read.h"
#include "medley/checkpoint/write.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

const std::string kRun = "run";

std::string bytes_of(int64_t step) { return "the bytes of step " + std::to_string(step) + "....."; }

// Returns a value with one byte per element, in two files.
Manifest make_manifest(int64_t step) {
  Manifest manifest;
  manifest.state.step = step;
  const auto size = static_cast<int64_t>(bytes_of(step).size());
  manifest.values = {
      {"parameter", "w", DType::kU8, {size}, {size}, {{{0, 9}}, {{9, size}}}, {0, 1}}};
  return manifest;
}

void save(Files& files, int64_t step, const Retention& retention = {.keep = 1}) {
  Manifest manifest = make_manifest(step);
  const std::string bytes = bytes_of(step);
  const StoredValue value = manifest.values[0];
  begin_checkpoint(files, kRun, step);
  for (size_t f = 0; f < 2; ++f)
    manifest.files.push_back(write_tensors(
        files,
        temporary_folder(kRun, step),
        std::to_string(f) + ".safetensors",
        {source_of(value, f, value.factors, whole_box(value.factors), bytes.data())}));
  commit_checkpoint(files, kRun, manifest);
  retire_checkpoints(files, kRun, retention);
}

// Reads every byte of the newest checkpoint.
int64_t newest(Files& files) {
  for (const FoundCheckpoint& found : find_checkpoints(files, kRun)) {
    if (!found.is_complete) continue;
    const Manifest manifest = open_checkpoint(files, found.path);
    const StoredValue& value = manifest.values[0];
    std::string bytes(at(value.shape[0]), '?');
    read_checkpoint(files,
                    found.path,
                    manifest,
                    {{"parameter",
                      "w",
                      DType::kU8,
                      value.shape,
                      {value.shape, {whole_box(value.shape)}, {}, {}},
                      {bytes.data()}}});
    EXPECT_EQ(bytes, bytes_of(found.step));
    return found.step;
  }
  return -1;
}

MemoryFiles with_step_one() {
  MemoryFiles files;
  files.make_directories(kRun);
  save(files, 1);
  return files;
}

int calls_of_a_save() {
  MemoryFiles files = with_step_one();
  const int before = files.calls();
  save(files, 2);
  return files.calls() - before;
}

// If any call fails, the old or the new one is intact, also after a power cut, and another save
// succeeds.
TEST(CheckpointFolder, AFaultAtAnyCallLeavesTheOldOrTheNew) {
  const int calls = calls_of_a_save();
  EXPECT_GT(calls, 15);
  for (const int64_t step : {1, 2})  // replaced, or in addition to the old one
    for (int n = 0; n < calls + 5; ++n)
      for (const bool crashes : {false, true}) {
        SCOPED_TRACE(fmt::format("step {}, call {}, crash {}", step, n, crashes));
        MemoryFiles files = with_step_one();
        const int before = files.calls();
        files.fail_call(n);
        bool failed = false;
        try {
          save(files, step);
        } catch (const Error& error) {
          failed = true;
          EXPECT_EQ(error.blame(), Blame::kEnvironment);
        }
        EXPECT_EQ(failed, files.calls() - before > n);
        files.fail_call(1 << 20);
        if (crashes) files.crash();
        const int64_t found = newest(files);
        EXPECT_TRUE(found == 1 || found == step) << found;
        save(files, 3);
        EXPECT_EQ(newest(files), 3);
        EXPECT_THAT(files.list(kRun), ElementsAre("step-00000003"));
      }
}

// A machine that stops between two calls, without executing any later one.
class Stopping : public MemoryFiles {
 public:
  explicit Stopping(MemoryFiles files, int calls)
      : MemoryFiles(std::move(files)), last_(this->calls() + calls) {}
  bool stopped() const { return calls() >= last_; }
  void go_on() { last_ = 1 << 30; }

  void write(const std::string& path, std::string_view bytes) override {
    check();
    MemoryFiles::write(path, bytes);
  }
  void append(const std::string& path, std::string_view bytes) override {
    check();
    MemoryFiles::append(path, bytes);
  }
  void sync(const std::string& path) override {
    check();
    MemoryFiles::sync(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    check();
    MemoryFiles::rename(from, to);
  }
  void remove(const std::string& path) override {
    check();
    MemoryFiles::remove(path);
  }
  void remove_directory(const std::string& path) override {
    check();
    MemoryFiles::remove_directory(path);
  }
  void make_directories(const std::string& path) override {
    check();
    MemoryFiles::make_directories(path);
  }

 private:
  void check() const {
    if (stopped()) throw Error(Blame::kEnvironment, "power cut");
  }
  int last_;
};

TEST(CheckpointFolder, APowerCutBetweenAnyTwoCallsLeavesTheOldOrTheNew) {
  const int calls = calls_of_a_save();
  for (const int64_t step : {1, 2})
    for (int n = 0; n <= calls + 5; ++n) {
      SCOPED_TRACE(fmt::format("step {}, after {} calls", step, n));
      Stopping files(with_step_one(), n);
      try {
        save(files, step);
      } catch (const Error&) {
      }
      files.crash();
      const int64_t found = newest(files);
      EXPECT_TRUE(found == 1 || found == step) << found;
      files.go_on();
      save(files, 3);
      EXPECT_EQ(newest(files), 3);
      EXPECT_THAT(files.list(kRun), ElementsAre("step-00000003"));
    }
}

TEST(CheckpointFolder, AFullDiskLeavesTheOldOne) {
  for (int64_t room = 0;; room += 50) {
    SCOPED_TRACE(room);
    MemoryFiles files = with_step_one();
    files.set_room(room);
    bool failed = false;
    try {
      save(files, 2);
    } catch (const Error& error) {
      failed = true;
      EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
      drop_checkpoint(files, kRun, 2);
    }
    EXPECT_EQ(newest(files), failed ? 1 : 2);
    if (!failed) break;
    EXPECT_THAT(files.list(kRun), ElementsAre("step-00000001"));
    ASSERT_LT(room, 10000);
  }
}

TEST(CheckpointFolder, KeepsTheNewestAndSomeForGood) {
  MemoryFiles files;
  files.make_directories(kRun);
  for (int64_t step = 1; step <= 12; ++step) save(files, step, {.keep = 2, .keep_every = 5});
  EXPECT_THAT(files.list(kRun),
              ElementsAre("step-00000005", "step-00000010", "step-00000011", "step-00000012"));
}

std::string refusal(const std::function<void(MemoryFiles&)>& change) {
  MemoryFiles files = with_step_one();
  change(files);
  try {
    newest(files);
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller);
    return error.what();
  }
  return "accepted";
}

void flip(MemoryFiles& files, const std::string& path, size_t byte) {
  std::string bytes = files.read(path);
  bytes[byte] = static_cast<char>(bytes[byte] ^ 4);
  files.write(path, bytes);
}

TEST(CheckpointFolder, ChangedFileIsRefusedByName) {
  const std::string file = "run/step-00000001/1.safetensors";
  EXPECT_EQ(refusal([](MemoryFiles&) {}), "accepted");
  EXPECT_THAT(refusal([&](MemoryFiles& f) { flip(f, file, f.read(file).size() - 1); }),
              StartsWith(file + ": tensor \"w@1\": bytes 0 to 15: found crc32c "));
  EXPECT_THAT(refusal([&](MemoryFiles& f) { flip(f, file, f.read(file).find("format")); }),
              StartsWith(file + ": found a header with the SHA-256 "));
  EXPECT_EQ(refusal([&](MemoryFiles& f) { f.write(file, f.read(file) + "x"); }),
            file + ": found 16 bytes of tensors, expected 15");
  EXPECT_EQ(refusal([&](MemoryFiles& f) { f.remove(file); }),
            file + ": found no such file, expected one");
  EXPECT_THAT(refusal([](MemoryFiles& f) { flip(f, "run/step-00000001/manifest.json", 60); }),
              HasSubstr("expected what COMMIT says"));
  EXPECT_THAT(refusal([](MemoryFiles& f) { f.remove("run/step-00000001/manifest.json"); }),
              HasSubstr("found no manifest.json, expected a complete checkpoint"));
}

// Any changed bit and any length of a file is detected before a byte of it is used.
TEST(CheckpointFolder, EveryBitAndEveryTruncationIsSeen) {
  const MemoryFiles good = with_step_one();
  for (const std::string name : {"0.safetensors", "1.safetensors", "manifest.json", "COMMIT"}) {
    const std::string path = "run/step-00000001/" + name;
    const std::string bytes = MemoryFiles(good).read(path);
    for (size_t i = 0; i < bytes.size(); ++i)
      for (const bool truncates : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, byte {}, {}", path, i, truncates));
        EXPECT_NE(refusal([&](MemoryFiles& files) {
                    if (truncates)
                      files.write(path, bytes.substr(0, i));
                    else
                      flip(files, path, i);
                  }),
                  "accepted");
      }
  }
}

}  // namespace
}  // namespace medley
