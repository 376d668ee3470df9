#include "medley/base/files.h"
#include "medley/base/at.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
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

// The interface's guarantees hold for the disk and for the fake.
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
  EXPECT_THROW(files.remove_directory(folder), Error);
  files.rename(folder, join_path(root, "a/c"));
  EXPECT_EQ(files.read(join_path(root, "a/c/y")), "new");
  EXPECT_THAT(files.list(join_path(root, "a")), ElementsAre("c"));
  files.remove(join_path(root, "a/c/y"));
  files.remove_directory(join_path(root, "a/c"));
  EXPECT_FALSE(files.exists(join_path(root, "a/c")));
}

TEST(LocalFiles, KeepsWhatIsWritten) {
  TemporaryFolder folder;
  LocalFiles files;
  expect_file_system(files, folder.path());
}

// Appends whole blocks and others, after whole blocks and others.
TEST(LocalFiles, AppendsBlocksAndWhatIsNone) {
  TemporaryFolder folder;
  LocalFiles files;
  constexpr size_t kBlock = Files::kBlockBytes;
  alignas(kBlock) std::array<char, 4 * kBlock> memory;
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<char>(i / 7);
  const std::string_view all(memory.data(), memory.size());
  const std::string path = join_path(folder.path(), "x");
  std::string expected;
  for (const std::string_view bytes : {all,                           // block to block
                                       all.substr(kBlock, kBlock),    // likewise, one
                                       all.substr(kBlock + 1),        // unaligned in memory
                                       all,                           // unaligned in the file
                                       all.substr(0, 1),              // to its end
                                       all.substr(0, 2 * kBlock),     // blocks again
                                       all.substr(0, kBlock + 1)}) {  // no whole ones
    files.append(path, bytes);
    expected += bytes;
  }
  files.sync(path);
  EXPECT_TRUE(files.read(path) == expected);
}

// A reader of smaller pieces loses no bytes.
TEST(LocalFiles, AppendsBlocksToAPipe) {
  TemporaryFolder folder;
  LocalFiles files;
  const std::string pipe = join_path(folder.path(), "pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int end = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  alignas(Files::kBlockBytes) std::array<char, Files::kBlockBytes> memory{};
  files.append(pipe, {memory.data(), memory.size()});
  size_t have = 0;
  std::array<char, 100> some;
  for (ssize_t got; (got = ::read(end, some.data(), some.size())) > 0;) have += at(got);
  EXPECT_EQ(have, memory.size());
  ::close(end);
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

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// `medley check /dev/zero` would end when memory does, and a pipe without a writer never.
TEST(LocalFiles, RefusesToReadWhatMayNotEnd) {
  TemporaryFolder folder;
  const std::string link = join_path(folder.path(), "zero.json");
  const std::string pipe = join_path(folder.path(), "pipe.json");
  std::filesystem::create_symlink("/dev/zero", link);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  LocalFiles files;
  EXPECT_EQ(message_of([&] { files.read(link); }), link + ": found a device, expected a file");
  EXPECT_EQ(message_of([&] { files.read(pipe); }), pipe + ": found a pipe, expected a file");
}

// Checked before reading: a sparse file of a terabyte takes no time and no memory.
TEST(LocalFiles, RefusesToReadMoreThanAnyReaderTakes) {
  TemporaryFolder folder;
  const std::string path = join_path(folder.path(), "sparse.graph");
  LocalFiles files;
  files.write(path, "x");
  std::filesystem::resize_file(path, uintmax_t{1} << 40);
  EXPECT_EQ(message_of([&] { files.read(path); }),
            path + ": found 1099511627776 bytes or more, expected at most 268435456");
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

// If any call fails, with or without a machine crash, a reader finds the whole old file or the
// whole new one.
TEST(MemoryFiles, CrashUndoesTheRenamingOfADirectoryUntilTheOneAboveIsSynced) {
  for (const bool is_synced : {false, true}) {
    MemoryFiles files;
    files.make_directories("run/a");
    files.write("run/a/x", "1");
    files.sync("run/a/x");
    files.sync("run/a");
    files.rename("run/a", "run/b");
    if (is_synced) files.sync("run");
    files.crash();
    EXPECT_EQ(files.read(is_synced ? "run/b/x" : "run/a/x"), "1");
    EXPECT_THAT(files.list("run"), ElementsAre(is_synced ? "b" : "a"));
  }
}

TEST(MemoryFiles, HasNoMoreRoomThanItWasGiven) {
  MemoryFiles files;
  files.set_room(4);
  files.write("x", "123");
  EXPECT_THROW(files.append("x", "45"), Error);
  EXPECT_EQ(files.read("x"), "1234");
  files.remove("x");
  files.write("y", "1234");
}

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

// `-o` may name anything. A pipe of this process replaces /dev/stdout and the like.
TEST(WriteAtomically, WritesToWhatIsNoFile) {
  TemporaryFolder folder;
  LocalFiles files;
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  write_atomically(files, "/dev/fd/" + std::to_string(ends[1]), "to the pipe");
  std::array<char, 11> text{};
  EXPECT_EQ(::read(ends[0], text.data(), text.size()), 11);
  EXPECT_EQ(std::string(text.begin(), text.end()), "to the pipe");
  ::close(ends[0]);
  ::close(ends[1]);

  const std::string full = join_path(folder.path(), "full");
  std::filesystem::create_symlink("/dev/full", full);
  EXPECT_EQ(message_of([&] { write_atomically(files, full, "x"); }),
            full + ": cannot write: No space left on device");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full")) << "it is not replaced";
  EXPECT_THAT(files.list(folder.path()), ElementsAre("full"));
}

TEST(WriteAtomically, FollowsLinks) {
  TemporaryFolder folder;
  LocalFiles files;
  const auto path = [&](const std::string& name) { return join_path(folder.path(), name); };
  files.make_directories(path("data"));
  files.write(path("data/old"), "old");
  std::filesystem::create_symlink("data/old", path("link"));
  std::filesystem::create_symlink("data/absent", path("dangling"));
  std::filesystem::create_symlink("loop", path("loop"));
  write_atomically(files, path("link"), "new");
  write_atomically(files, path("dangling"), "made");
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_EQ(files.read(path("data/old")), "new");
  EXPECT_EQ(files.read(path("data/absent")), "made");
  EXPECT_THAT(message_of([&] { write_atomically(files, path("loop"), "x"); }),
              HasSubstr("loop: cannot look up: Too many levels of symbolic links"));
}

// A predictable name would let others choose the overwritten file.
TEST(WriteAtomically, DoesNotUseAFixedTemporaryName) {
  TemporaryFolder folder;
  LocalFiles files;
  const std::string victim = join_path(folder.path(), "victim");
  const std::string path = join_path(folder.path(), "plan.json");
  files.write(victim, "precious");
  std::filesystem::create_symlink("victim", path + ".tmp");
  write_atomically(files, path, "plan");
  EXPECT_EQ(files.read(victim), "precious");
  EXPECT_EQ(files.read(path), "plan");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
  std::vector<std::jthread> writers;
  for (int i = 0; i < 8; ++i) writers.emplace_back([&] { write_atomically(files, path, "plan"); });
  writers.clear();
  EXPECT_THAT(files.list(folder.path()), ElementsAre("plan.json", "plan.json.tmp", "victim"));
}

TEST(WriteAtomically, NamesTheFileThatWasAskedForAndLeavesNothing) {
  TemporaryFolder folder;
  LocalFiles files;
  const std::string absent = join_path(folder.path(), "no/plan.json");
  EXPECT_EQ(message_of([&] { write_atomically(files, absent, "x"); }),
            absent + ": cannot write: No such file or directory");
  EXPECT_EQ(message_of([&] { write_atomically(files, folder.path(), "x"); }),
            folder.path() + ": cannot write: Is a directory");
  MemoryFiles memory;
  for (int n = 0; n < 3; ++n) {  // create, sync, rename
    memory.fail_call(n);
    EXPECT_THAT(message_of([&] { write_atomically(memory, "plan.json", "x"); }),
                ::testing::StartsWith("plan.json: cannot "));
    EXPECT_THAT(memory.list("."), ::testing::IsEmpty());
  }
}

TEST(WriteAtomically, KeepsPermissions) {
  TemporaryFolder folder;
  LocalFiles files;
  const std::string path = join_path(folder.path(), "plan.json");
  const mode_t before = ::umask(027);
  write_atomically(files, path, "new");
  ::umask(before);
  const auto mode = [&] {
    struct stat status {};
    ::stat(path.c_str(), &status);
    return status.st_mode & 0777;
  };
  EXPECT_EQ(mode(), 0640u) << "as any new file";
  ASSERT_EQ(::chmod(path.c_str(), 0604), 0);
  write_atomically(files, path, "newer");
  EXPECT_EQ(mode(), 0604u) << "as the file that it replaces";
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
