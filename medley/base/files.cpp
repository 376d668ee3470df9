#include "medley/base/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "medley/base/error.h"

namespace medley {
namespace {

[[noreturn]] void fail(const std::string& path, const char* action, int code) {
  throw Error(Blame::kEnvironment,
              fmt::format("{}: cannot {}: {}", path, action, std::strerror(code)));
}

class Descriptor {
 public:
  Descriptor(const std::string& path, const char* action, int flags)
      : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) fail(path, action, errno);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  // Reports what a network file system tells only now. Writers call it; for readers the destructor
  // is enough.
  void close() {
    if (::close(std::exchange(fd_, -1)) != 0) fail(path_, "write", errno);
  }

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t done = ::write(fd_, bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail(path_, "write", errno);
      bytes.remove_prefix(static_cast<size_t>(done));
    }
  }

  std::string read(int64_t offset, int64_t count) {
    std::string bytes(static_cast<size_t>(count), '\0');
    for (size_t have = 0; have < bytes.size();) {
      ssize_t done = ::pread(
          fd_, bytes.data() + have, bytes.size() - have, offset + static_cast<int64_t>(have));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail(path_, "read", errno);
      if (done == 0) {
        throw Error(Blame::kEnvironment,
                    fmt::format("{}: ends after {} bytes, expected {}",
                                path_,
                                offset + static_cast<int64_t>(have),
                                offset + count));
      }
      have += static_cast<size_t>(done);
    }
    return bytes;
  }

  // To its end, which only a file that lies on a disk knows before: others may be pipes.
  std::string read_all() {
    std::string bytes(static_cast<size_t>(size()) + 1, '\0');
    for (size_t have = 0;;) {
      const ssize_t done = ::read(fd_, bytes.data() + have, bytes.size() - have);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail(path_, "read", errno);
      have += static_cast<size_t>(done);
      if (done == 0) {
        bytes.resize(have);
        return bytes;
      }
      if (have == bytes.size()) bytes.resize(2 * have);
    }
  }

  int64_t size() const {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) fail(path_, "read", errno);
    if (S_ISDIR(status.st_mode)) fail(path_, "read", EISDIR);
    return status.st_size;
  }

  void sync() {
    if (::fsync(fd_) != 0) fail(path_, "sync", errno);
  }

 private:
  const std::string& path_;
  int fd_;
};

}  // namespace

std::string join_path(const std::string& directory, const std::string& name) {
  if (directory.empty()) return name;
  return directory.ends_with('/') ? directory + name : directory + "/" + name;
}

std::string parent_path(const std::string& path) {
  std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

void write_atomically(Files& files, const std::string& path, std::string_view bytes) {
  std::string temporary = path + ".tmp";
  files.write(temporary, bytes);
  files.sync(temporary);
  files.rename(temporary, path);
  files.sync(parent_path(path));
}

bool LocalFiles::exists(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) fail(path, "look up", errno);
  return false;
}

int64_t LocalFiles::size(const std::string& path) {
  return Descriptor(path, "read", O_RDONLY).size();
}

std::string LocalFiles::read(const std::string& path) {
  return Descriptor(path, "read", O_RDONLY).read_all();
}

std::string LocalFiles::read_range(const std::string& path, int64_t offset, int64_t count) {
  return Descriptor(path, "read", O_RDONLY).read(offset, count);
}

std::vector<std::string> LocalFiles::list(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) fail(directory, "list", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

void LocalFiles::write(const std::string& path, std::string_view bytes) {
  Descriptor file(path, "write", O_WRONLY | O_CREAT | O_TRUNC);
  file.write(bytes);
  file.close();
}

void LocalFiles::append(const std::string& path, std::string_view bytes) {
  Descriptor file(path, "write", O_WRONLY | O_CREAT | O_APPEND);
  file.write(bytes);
  file.close();
}

void LocalFiles::sync(const std::string& path) { Descriptor(path, "sync", O_RDONLY).sync(); }

void LocalFiles::rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(from, "rename", errno);
}

void LocalFiles::remove(const std::string& path) {
  if (::unlink(path.c_str()) != 0) fail(path, "remove", errno);
}

void LocalFiles::make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail(path, "make the directory", error.value());
}

}  // namespace medley
