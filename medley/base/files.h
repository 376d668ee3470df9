#pragma once

// The seam for durable storage. It knows paths and bytes, no formats.
// Every failure is an Error whose message begins with the path: kCaller for what nobody should ask
// for (to read a device), else kEnvironment. Asking for a file that is not there is one too, so ask
// `exists` first where its absence is an answer.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace medley {

// What stands under a path, symbolic links followed.
enum class FileKind {
  kNothing,
  kRegular,
  kDirectory,
  kStream,  // a device, a pipe, a socket, or what stands under /dev/stdout and /dev/fd
};

class Files {
 public:
  // More than any reader of ours takes. What is larger is refused before it is read.
  static constexpr int64_t kMostBytes = int64_t{1} << 28;
  static constexpr int64_t kBlockBytes = 4096;  // of a disk: no block of one is larger

  virtual ~Files() = default;

  virtual bool exists(const std::string& path) = 0;
  virtual FileKind kind(const std::string& path) = 0;
  // Returns the path with its symbolic links followed, also where they lead to nothing.
  virtual std::string resolve(const std::string& path) = 0;
  virtual int64_t size(const std::string& path) = 0;
  // Returns a regular file, or what a pipe of this process's own (/dev/stdin, /dev/fd/63) still
  // has. Refuses devices and other pipes, which may not end, and more than kMostBytes.
  virtual std::string read(const std::string& path) = 0;
  // Returns exactly `count` bytes; a file that ends before is an error.
  virtual std::string read_range(const std::string& path, int64_t offset, int64_t count) = 0;
  // Returns the names of the entries of a directory, sorted.
  virtual std::vector<std::string> list(const std::string& directory) = 0;

  // Creates or replaces the file. What was written may be lost until it is synced.
  virtual void write(const std::string& path, std::string_view bytes) = 0;
  // Whole blocks that begin at one, in memory and in the file, reach a disk without a copy in the
  // cache of the system, where it can do that.
  virtual void append(const std::string& path, std::string_view bytes) = 0;
  // Creates a file where nothing stands, not even a link; with the permissions of `like` if that is
  // there.
  virtual void create(const std::string& path, std::string_view bytes, const std::string& like) = 0;
  // Makes the contents of a file durable, or the names in a directory.
  virtual void sync(const std::string& path) = 0;
  // Replaces `to` atomically. Durable once the directory of `to` is synced. Of a directory `to`
  // must not be there.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void remove(const std::string& path) = 0;
  // Removes an empty one.
  virtual void remove_directory(const std::string& path) = 0;
  // Creates the directory and its parents; it is no error when they are there.
  virtual void make_directories(const std::string& path) = 0;
};

// Leaves either the old file or the new one under `path`, whatever happens and whenever: writes a
// temporary neighbour of a random name, syncs it, renames it, syncs the directory. A symbolic link
// stays, and the file that it leads to is replaced. What is no file (/dev/stdout, a pipe) is
// written to. On an error nothing is left beside the file, and the message names `path`.
void write_atomically(Files& files, const std::string& path, std::string_view bytes);

// Joins with one slash. An empty directory gives the bare name.
std::string join_path(const std::string& directory, const std::string& name);
// Returns what stands before the last slash, "." where there is none.
std::string parent_path(const std::string& path);

// The disks of this machine.
class LocalFiles : public Files {
 public:
  bool exists(const std::string& path) override;
  FileKind kind(const std::string& path) override;
  std::string resolve(const std::string& path) override;
  int64_t size(const std::string& path) override;
  std::string read(const std::string& path) override;
  std::string read_range(const std::string& path, int64_t offset, int64_t count) override;
  std::vector<std::string> list(const std::string& directory) override;
  void write(const std::string& path, std::string_view bytes) override;
  void append(const std::string& path, std::string_view bytes) override;
  void create(const std::string& path, std::string_view bytes, const std::string& like) override;
  void sync(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void remove_directory(const std::string& path) override;
  void make_directories(const std::string& path) override;
};

}  // namespace medley
