#include "medley/base/files.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>
#include <thread>

#include "medley/base/error.h"
#include "medley/base/memory_files.h"

namespace medley {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "medley_XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_; }

 private:
  std::string path_;
};

// What callers may rely on holds for the disk and for the fake alike.
void expect_file_system(Files& files, const std::string& root) {
  std::string folder = join_path(root, "a/b");
  std::string path = join_path(folder, "x");
  files.make_directories(folder);
  EXPECT_FALSE(files.exists(path));
  files.write(path, "hello");
  files.append(path, " world");
  EXPECT_EQ(files.read(path), "hello world");
  EXPECT_EQ(files.size(path), 11);
  EXPECT_EQ(files.read_range(path, 6, 5), "world");
  EXPECT_THROW(files.read_range(path, 6, 6), Error);
  files.sync(path);
  files.rename(path, join_path(folder, "y"));
  files.write(join_path(folder, "c"), "");
  files.sync(folder);
  EXPECT_THAT(files.list(folder), ElementsAre("c", "y"));
  files.remove(join_path(folder, "c"));
  EXPECT_THAT(files.list(folder), ElementsAre("y"));
  EXPECT_THAT(files.list(join_path(root, "a")), ElementsAre("b"));
  write_atomically(files, join_path(folder, "y"), "new");
  EXPECT_EQ(files.read(join_path(folder, "y")), "new");
  EXPECT_THAT(files.list(folder), ElementsAre("y"));
}

TEST(LocalFiles, KeepsWhatIsWritten) {
  TemporaryFolder folder;
  LocalFiles files;
  expect_file_system(files, folder.path());
}

// `medley plan <(zcat g.graph.gz) ...`
TEST(LocalFiles, ReadsAPipeToItsEnd) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const std::string text(200'000, 'x');
  std::jthread writer([&] {
    for (size_t at = 0; at < text.size();)
      at += static_cast<size_t>(::write(ends[1], text.data() + at, text.size() - at));
    ::close(ends[1]);
  });
  EXPECT_EQ(LocalFiles().read("/dev/fd/" + std::to_string(ends[0])), text);
  ::close(ends[0]);
}

TEST(MemoryFiles, BehavesLikeTheDisk) {
  MemoryFiles files;
  expect_file_system(files, "root");
}

void expect_environment_error(const std::function<void()>& call, const std::string& path) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kEnvironment);
    EXPECT_THAT(error.what(), HasSubstr(path));
  }
}

TEST(Files, ErrorsNameThePath) {
  LocalFiles local;
  MemoryFiles memory;
  for (Files* files : {static_cast<Files*>(&local), static_cast<Files*>(&memory)}) {
    expect_environment_error([&] { files->read("/no/such/file"); }, "/no/such/file");
    expect_environment_error([&] { files->write("/no/such/file", "x"); }, "/no/such/file");
    expect_environment_error([&] { files->list("/no/such"); }, "/no/such");
    expect_environment_error([&] { files->remove("/no/such/file"); }, "/no/such/file");
  }
}

TEST(MemoryFiles, CrashDropsWhatWasNotSynced) {
  MemoryFiles files;
  files.write("x", "old");
  files.sync("x");
  files.sync(".");
  files.write("x", "new");
  files.write("y", "unnamed");
  files.sync("y");  // its contents, not its name
  files.crash();
  EXPECT_EQ(files.read("x"), "old");
  EXPECT_FALSE(files.exists("y"));
}

// Whichever call fails, and whether or not the machine goes down with it, a reader finds the whole
// old file or the whole new one.
TEST(WriteAtomically, LeavesTheOldOrTheNewFile) {
  for (bool crash : {false, true}) {
    for (int n = 0;; ++n) {
      MemoryFiles files;
      write_atomically(files, "x", "old contents");
      int before = files.calls();
      files.fail_call(n);
      bool failed = false;
      try {
        write_atomically(files, "x", "new contents");
      } catch (const Error&) {
        failed = true;
      }
      if (crash) files.crash();
      EXPECT_THAT(files.read("x"), AnyOf("old contents", "new contents"));
      if (!failed) {
        EXPECT_EQ(files.read("x"), "new contents");
        EXPECT_EQ(n, files.calls() - before) << "every call was made to fail once";
        break;
      }
    }
  }
}

TEST(Paths, JoinAndParent) {
  EXPECT_EQ(join_path("", "x"), "x");
  EXPECT_EQ(join_path("a/", "x"), "a/x");
  EXPECT_EQ(parent_path("a/b/x"), "a/b");
  EXPECT_EQ(parent_path("x"), ".");
  EXPECT_EQ(parent_path("/x"), "/");
}

}  // namespace
}  // namespace medley
