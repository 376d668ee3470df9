#pragma once

// The interface for durable storage: paths and bytes, no formats. Every failure is an Error whose
// message begins with the path: kCaller for an invalid request such as reading a device, else
// kEnvironment. A missing file is an error too, so call `exists` first if its absence is valid.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace medley {

// The type of the entry under a path, with symbolic links followed.
enum class FileKind {
  kNothing,
  kRegular,
  kDirectory,
  kStream,  // a device, a pipe, a socket, or an entry of /dev/stdout or /dev/fd
};

class Files {
 public:
  // The largest file that read() accepts, in bytes. Larger files are refused before they are read.
  static constexpr int64_t kMostBytes = int64_t{1} << 28;
  static constexpr int64_t kBlockBytes = 4096;  // block size limit of disks

  virtual ~Files() = default;

  virtual bool exists(const std::string& path) = 0;
  virtual FileKind kind(const std::string& path) = 0;
  // Returns the path with its symbolic links followed, even if the target does not exist.
  virtual std::string resolve(const std::string& path) = 0;
  virtual int64_t size(const std::string& path) = 0;
  // Returns a regular file, or the rest of a pipe of this process (/dev/stdin, /dev/fd/63). Throws
  // for devices and other pipes, which may not end, and for more than kMostBytes.
  virtual std::string read(const std::string& path) = 0;
  // Returns exactly `count` bytes. Throws if the file ends before.
  virtual std::string read_range(const std::string& path, int64_t offset, int64_t count) = 0;
  // Returns the sorted names of a directory's entries.
  virtual std::vector<std::string> list(const std::string& directory) = 0;

  // Creates or replaces the file. The bytes may be lost until the file is synced.
  virtual void write(const std::string& path, std::string_view bytes) = 0;
  // Appends. Blocks that are aligned in memory and in the file bypass the system's cache if the
  // system supports that.
  virtual void append(const std::string& path, std::string_view bytes) = 0;
  // Creates a file if there is no entry, not even a link, with the permissions of `like` if that
  // exists.
  virtual void create(const std::string& path, std::string_view bytes, const std::string& like) = 0;
  // Makes the contents of a file, or the names in a directory, durable.
  virtual void sync(const std::string& path) = 0;
  // Replaces `to` atomically. Durable once the directory of `to` is synced. If `from` is a
  // directory, `to` must not exist.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void remove(const std::string& path) = 0;
  // Removes an empty directory.
  virtual void remove_directory(const std::string& path) = 0;
  // Creates the directory and its parents, unless they exist.
  virtual void make_directories(const std::string& path) = 0;
};

// Leaves either the old or the new file under `path` after any failure: writes a temporary file
// with a random name next to it, syncs and renames it, and syncs the directory. Replaces the target
// of a symbolic link. Streams such as /dev/stdout are written to. An error leaves no temporary
// file, and its message names `path`.
void write_atomically(Files& files, const std::string& path, std::string_view bytes);

// Joins with one slash. An empty directory gives the bare name.
std::string join_path(const std::string& directory, const std::string& name);
// Returns the part before the last slash, or "." if there is no slash.
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
