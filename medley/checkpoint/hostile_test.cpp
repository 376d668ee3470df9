// Any content of a checkpoint's folder is read correctly, or refused with one sentence that names
// the file. It takes at most a multiple of the folder's size in memory.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <malloc.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <random>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/memory_files.h"
#include "medley/base/sha256.h"
#include "medley/checkpoint/folder.h"
#include "medley/checkpoint/read.h"
#include "medley/checkpoint/safetensors.h"
#include "medley/checkpoint/write.h"

namespace {

std::atomic<size_t> bytes_now = 0, bytes_most = 0;

void* take(size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  const size_t now = bytes_now += malloc_usable_size(memory);
  if (now > bytes_most) bytes_most = now;
  return memory;
}

void give_back(void* memory) {
  if (memory != nullptr) bytes_now -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return take(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return take(size); }
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, size_t) noexcept { give_back(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { give_back(memory); }

namespace medley {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kHostileRun = "run";
const std::string kHostileFolder = "run/step-00000003";
const std::vector<std::string> kNames{"0.safetensors", "1.safetensors", "manifest.json", "COMMIT"};
constexpr size_t kMostMessage = 1000;

Manifest sample_values() {
  Manifest manifest;
  manifest.state = {.step = 3,
                    .global_batch = 6,
                    .seed = 0,
                    .data = DataCursor{0, 2, 7},
                    .optimizer = {{"kind", std::string("adamw")}, {"beta1", 0.9}},
                    .schedule = "0.001",
                    .graph = "a",
                    .plan = "b",
                    .cluster = "",
                    .versions = {{"medley", "0.1.0"}}};
  manifest.values = {{"parameter", "w", DType::kF32, {4, 6}, {4, 2, 3}, {}, {0, 1}},
                     {"state", "exp_avg:w", DType::kF32, {4, 6}, {24}, {}, {1}},
                     {"buffer", "steps", DType::kI64, {}, {}, {{}}, {0}},
                     {"buffer", "none", DType::kBF16, {0, 3}, {0, 3}, {}, {}}};
  manifest.values[0].boxes = {{{0, 3}, {0, 2}, {0, 3}}, {{3, 4}, {0, 2}, {0, 3}}};
  manifest.values[1].boxes = {{{0, 24}}};
  return manifest;
}

std::string path_of(const std::string& name) { return kHostileFolder + "/" + name; }

MemoryFiles written() {
  MemoryFiles files;
  files.make_directories(kHostileRun);
  begin_checkpoint(files, kHostileRun, 3);
  Manifest manifest = sample_values();
  const std::string bytes(200, 'x');
  for (int f = 0; f < 2; ++f) {
    std::vector<TensorSource> sources;
    for (const StoredValue& value : manifest.values)
      for (size_t box = 0; box < value.boxes.size(); ++box)
        if (value.files[box] == f)
          sources.push_back(
              source_of(value, box, value.factors, whole_box(value.factors), bytes.data()));
    manifest.files.push_back(
        write_tensors(files, temporary_folder(kHostileRun, 3), kNames[at(f)], sources));
  }
  commit_checkpoint(files, kHostileRun, manifest);
  return files;
}

// A copy of a MemoryFiles shares its files.
MemoryFiles sample() {
  static MemoryFiles good = written();
  MemoryFiles files;
  files.make_directories(kHostileFolder);
  for (const std::string& name : kNames) files.write(path_of(name), good.read(path_of(name)));
  return files;
}

std::string good(const std::string& name) { return sample().read(path_of(name)); }

// Reads like a run with the sample's values.
void read_all(Files& files, const std::string& folder) {
  const Manifest manifest = open_checkpoint(files, folder);
  check_checkpoint(files, folder, manifest);
  std::vector<std::string> memory;
  std::vector<WantedBoxes> wanted;
  for (const StoredValue& value : sample_values().values) {
    if (value.boxes.empty()) continue;
    memory.emplace_back(200, '\0');
    wanted.push_back({value.kind,
                      value.name,
                      value.dtype,
                      value.shape,
                      {value.shape, {whole_box(value.shape)}, {}, {}},
                      {memory.back().data()}});
  }
  read_checkpoint(files, folder, manifest, wanted);
}

// Commits like an attacker with access to hashes.
void commit(Files& files) {
  files.write(path_of("COMMIT"), sha256_hex(files.read(path_of("manifest.json"))) + "\n");
}

int64_t bytes_of(Files& files) {
  int64_t bytes = 0;
  for (const std::string& name : kNames)
    if (files.exists(path_of(name))) bytes += files.size(path_of(name));
  return bytes;
}

// Returns the error, "" if reading succeeded.
std::string refusal(Files& files) {
  const size_t room = 64 * at(bytes_of(files)) + (size_t{1} << 20);
  const size_t before = bytes_now;
  bytes_most = before;
  std::string message;
  try {
    read_all(files, kHostileFolder);
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kCaller) << error.what();
    message = error.what();
    EXPECT_THAT(message, StartsWith(kHostileFolder));
    EXPECT_THAT(message, HasSubstr("expected"));
    EXPECT_LT(message.size(), kMostMessage);
    EXPECT_EQ(std::ranges::find_if(message, [](unsigned char c) { return c < ' '; }),
              message.end());
  }
  EXPECT_LT(bytes_most - before, room) << message;
  return message;
}

struct Trials {
  int tried = 0, refused = 0;
  std::string try_one(Files& files) {
    const std::string message = refusal(files);
    ++tried;
    refused += message.empty() ? 0 : 1;
    return message;
  }
};

// Applies one to three changes: a bit; some bytes more, less, repeated or replaced; the end.
std::string damaged(std::string bytes, std::mt19937& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  for (size_t edits = 1 + below(3); edits > 0; --edits) {
    const size_t place = below(bytes.size()), length = 1 + below(16);
    switch (bytes.empty() ? 1 : below(6)) {
      case 0:
        bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(8)));
        break;
      case 1:
        bytes.insert(place, length, static_cast<char>(below(256)));
        break;
      case 2:
        bytes.erase(place, length);
        break;
      case 3:
        bytes.insert(place, bytes.substr(below(bytes.size()), length));
        break;
      case 4:
        bytes.replace(place, std::min(length, bytes.size() - place), length, '9');
        break;
      default:
        bytes.resize(place);
    }
  }
  return bytes;
}

TEST(HostileCheckpoint, DamageIsRefusedBySentence) {
  std::mt19937 random(0);
  Trials trials;
  MemoryFiles whole = sample();
  EXPECT_EQ(refusal(whole), "");
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(i);
    MemoryFiles files = sample();
    const std::string path = path_of(kNames[random() % kNames.size()]);
    const std::string before = files.read(path), after = damaged(before, random);
    if (after == before) continue;
    files.write(path, after);
    EXPECT_NE(trials.try_one(files), "") << path;
  }
  EXPECT_GE(trials.tried, 950);
}

// Returns the header: its length, then JSON, in front of the tensors.
std::string header_of(const std::string& bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  return bytes.substr(sizeof length, length);
}

void replace_header(Files& files, int f, const std::string& header, uint64_t length) {
  const std::string path = path_of(kNames[at(f)]), bytes = files.read(path);
  std::string front(sizeof length, '\0');
  std::memcpy(front.data(), &length, sizeof length);
  front += header;
  files.write(path, front + bytes.substr(sizeof length + header_of(bytes).size()));
  Json manifest = Json::parse(files.read(path_of("manifest.json")));
  manifest["files"][at(f)]["header_sha256"] = sha256_hex(front);
  files.write(path_of("manifest.json"), manifest.dump());
  commit(files);
}

TEST(HostileCheckpoint, DamageUnderRightHashesIsRefusedBySentence) {
  std::mt19937 random(1);
  Trials trials;
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(i);
    MemoryFiles files = sample();
    if (i % 2 == 0) {
      const std::string path = path_of("manifest.json");
      files.write(path, damaged(files.read(path), random));
      commit(files);
    } else {
      const int f = i / 2 % 2;
      const std::string header = damaged(header_of(files.read(path_of(kNames[at(f)]))), random);
      replace_header(files, f, header, header.size());
    }
    trials.try_one(files);
  }
  EXPECT_GE(trials.refused, 500);  // the others change the content
}

// Calls with every place in a value, the outermost first.
void for_each_place(Json& json, const std::function<void(Json&)>& call) {
  call(json);
  if (json.is_structured())
    for (Json& each : json) for_each_place(each, call);
}

const std::vector<Json>& strange_values() {
  static const std::vector<Json> values = [] {
    std::vector<Json> made{nullptr, true, 0, 1, -1, 2, 1 << 20, "", "w", "w@0", "../../etc/passwd"};
    for (const int bits : {31, 32, 48, 62, 63}) made.emplace_back(uint64_t{1} << bits);
    for (const Json& each : {Json(INT64_MIN), Json(UINT64_MAX), Json(1e300), Json(0.5)})
      made.push_back(each);
    made.push_back(std::string("a\n\x1b[31mb\0c", 11));
    made.push_back(std::string(5000, 'n'));
    made.push_back(Json::array());
    made.push_back(Json::object());
    made.push_back(Json::array({0, 1}));
    made.push_back(Json(std::vector<int64_t>(70, 2)));
    made.push_back(Json(std::vector<int64_t>{int64_t{1} << 47, 2, 0, int64_t{1} << 48}));
    made.push_back(Json(std::vector<int64_t>{0, INT64_MAX}));
    return made;
  }();
  return values;
}

// Calls with a copy of a JSON text for each of its places and each strange value there.
void for_each_strange(const std::string& text,
                      const std::function<void(const std::string&)>& call) {
  Json json = Json::parse(text);
  std::vector<Json*> places;
  for_each_place(json, [&](Json& place) { places.push_back(&place); });
  for (Json* place : places)
    for (const Json& strange : strange_values()) {
      Json before = std::exchange(*place, strange);  // inner values stay in place
      const std::string changed = json.dump();
      *place = std::move(before);
      call(changed);
    }
}

TEST(HostileCheckpoint, StrangeValuesAreRefusedBySentence) {
  const std::string manifest = good("manifest.json");
  Trials trials;
  for_each_strange(manifest, [&](const std::string& changed) {
    SCOPED_TRACE(changed.substr(0, 3000));
    MemoryFiles files = sample();
    files.write(path_of("manifest.json"), changed);
    commit(files);
    trials.try_one(files);
  });
  for_each_strange(header_of(good("0.safetensors")), [&](const std::string& changed) {
    SCOPED_TRACE(changed.substr(0, 3000));
    MemoryFiles files = sample();
    replace_header(files, 0, changed, changed.size());
    trials.try_one(files);
  });
  EXPECT_GE(trials.tried, 1500);
  EXPECT_GE(trials.refused, trials.tried / 2);
}

TEST(HostileCheckpoint, ForeignFilesAreRefusedBySentence) {
  const std::string tensors = good("0.safetensors");
  std::vector<std::string> foreign{"",
                                   "{}",
                                   "[]",
                                   "null",
                                   "\xef\xbb\xbf{}",
                                   "\x80\x04}q\x00.",
                                   std::string("PK\3\4\0\0\0\0", 8),
                                   std::string("GGUF\3\0\0\0", 8),
                                   "\x7f"
                                   "ELF",
                                   "\x89PNG\r\n",
                                   "\xff\xfe{\0}\0",
                                   "format: medley-cluster\nversion: 1\n",
                                   R"({"format": "medley-plan", "version": 1})",
                                   R"({"a": "\ud800"})",
                                   R"({"a": 1e999})",
                                   std::string(100000, '['),
                                   std::string(100000, '\0'),
                                   std::string(100000, '\xff'),
                                   tensors,
                                   good("manifest.json"),
                                   tensors.substr(0, tensors.size() / 2)};
  for (const uint64_t length : {0UL, 1UL, 2UL, 8UL, 1UL << 26, (1UL << 26) + 1, ~0UL, 1UL << 63}) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    foreign.push_back(bytes);
    foreign.push_back(bytes + "{}");
    foreign.push_back(bytes + "{}      ");
  }
  Trials trials;
  for (const std::string& name : kNames)
    for (const std::string& each : foreign)
      for (const bool is_committed : {false, true}) {
        SCOPED_TRACE(fmt::format("{} in {}, {}", each.substr(0, 20), name, is_committed));
        MemoryFiles files = sample();
        if (files.read(path_of(name)) == each) continue;
        files.write(path_of(name), each);
        if (is_committed && name == "manifest.json") commit(files);
        EXPECT_NE(trials.try_one(files), "");
      }
  EXPECT_GE(trials.tried, 300);
}

// Small texts that would need much memory or time.
TEST(HostileCheckpoint, SmallTextsCauseLittleWork) {
  const auto with = [&](const std::function<void(Json&)>& change) {
    MemoryFiles files = sample();
    Json json = Json::parse(files.read(path_of("manifest.json")));
    change(json);
    files.write(path_of("manifest.json"), json.dump());
    commit(files);
    return refusal(files);
  };
  const int64_t large = int64_t{1} << 40;
  EXPECT_THAT(with([&](Json& json) {
                Json& value = json["values"][1];
                value["shape"] = value["factors"] = {large};
                value["boxes"] = Json::array({Json::array({1, 0, large})});
              }),
              HasSubstr("tensor \"exp_avg:w\": found 96 bytes of f32, expected 4398046511104 of"));
  EXPECT_THAT(with([&](Json& json) {
                json["values"][0]["boxes"][1] = {1, 2, 2, 0, 2, 0, 3};
              }),
              HasSubstr("over one another"));
  // Each box is inside of the previous one, except in its own factor. All their ends cut the whole
  // into 100 million cells.
  EXPECT_THAT(with([&](Json& json) {
                Json& value = json["values"][1];
                value["shape"] = value["factors"] = {200, 200, 200, 200, 100};
                value["boxes"] = Json::array();
                for (int i = 0; i < 100; ++i) {
                  Json box{0};
                  for (int f = 0; f < 4; ++f) box.insert(box.end(), {i, 200 - 2 * i});
                  box.insert(box.end(), {i, 1});
                  value["boxes"].push_back(box);
                }
              }),
              HasSubstr("expected"));
}

// Non-files do not block, and are not read without end.
TEST(HostileCheckpoint, DirectoryInPlaceOfAFileIsRefused) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(::testing::TempDir()) / "hostile_checkpoint";
  LocalFiles files;
  for (const std::string& name : kNames)
    for (const std::string kind : {"folder", "pipe", "device", "loop"}) {
      SCOPED_TRACE(kind + " as " + name);
      fs::remove_all(root);
      fs::create_directories(root);
      for (const std::string& each : kNames) files.write((root / each).string(), good(each));
      const fs::path path = root / name;
      fs::remove(path);
      if (kind == "folder") fs::create_directory(path);
      if (kind == "pipe") ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
      if (kind == "device") fs::create_symlink("/dev/zero", path);
      if (kind == "loop") fs::create_symlink(path, path);
      try {
        read_all(files, root.string());
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_NE(error.blame(), Blame::kUs);
        EXPECT_THAT(error.what(), StartsWith(path.string() + ": "));
      }
    }
  fs::remove_all(root);
}

}  // namespace
}  // namespace medley
