#include "medley/emulation/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path) {
  const int code = errno;
  throw Error(
      Blame::kEnvironment,
      fmt::format(
          "emulation: cannot {} shared memory: {}: {}", what, std::strerror(code), path.string()));
}

std::span<std::byte> map(int file, size_t bytes, const std::filesystem::path& path) {
  const int flags = MAP_SHARED | (file < 0 ? MAP_ANONYMOUS : 0);
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  if (address == MAP_FAILED) fail("map", path);
  return {static_cast<std::byte*>(address), bytes};
}

struct File {
  explicit File(int descriptor) : number(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (number >= 0) close(number);
  }
  int number;
};

}  // namespace

SharedMemory SharedMemory::anonymous(size_t bytes) {
  return {map(-1, bytes, "(anonymous)"), {}, 0};
}

SharedMemory SharedMemory::create(const std::filesystem::path& path, size_t bytes) {
  const File file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.number < 0) fail("create", path);
  if (ftruncate(file.number, static_cast<off_t>(bytes)) != 0) {
    unlink(path.c_str());
    fail("size", path);
  }
  return {map(file.number, bytes, path), path, getpid()};
}

SharedMemory SharedMemory::open(const std::filesystem::path& path) {
  const File file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.number < 0) fail("open", path);
  struct stat status {};
  if (fstat(file.number, &status) != 0) fail("open", path);
  return {map(file.number, at(status.st_size), path), {}, 0};
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})),
      to_remove_(std::exchange(other.to_remove_, {})),
      owner_(other.owner_) {}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  if (!to_remove_.empty() && getpid() == owner_) unlink(to_remove_.c_str());
}

void SharedMutex::format() {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  MEDLEY_CHECK_EQ(pthread_mutex_init(&mutex_, &attributes), 0);
  pthread_mutexattr_destroy(&attributes);
}

bool SharedMutex::lock() {
  const int status = pthread_mutex_lock(&mutex_);
  if (status == EOWNERDEAD) {
    broken_ = 1;
    pthread_mutex_consistent(&mutex_);
  } else {
    MEDLEY_CHECK_EQ(status, 0);
  }
  return broken_ == 0;
}

void SharedMutex::unlock() { pthread_mutex_unlock(&mutex_); }

void sleep_on(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::milliseconds timeout) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  const timespec time{timeout.count() / 1000, timeout.count() % 1000 * 1000000};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &time, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

namespace {

// Returns the fields of /proc/<pid>/stat after the name, which may contain blanks and brackets: "S
// 1 ...".
std::string stat_fields(int32_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(in, line);
  const size_t end = line.rfind(')');
  return end == std::string::npos ? "" : line.substr(end + 1);
}

// Returns field 22 of the line, which is 20 in stat_fields().
uint64_t start_of(const std::string& fields) {
  std::istringstream in(fields);
  std::string skipped;
  for (int i = 0; i < 19; ++i) in >> skipped;
  uint64_t start = 0;
  in >> start;
  return start;
}

}  // namespace

ProcessId this_process() {
  const int32_t pid = getpid();
  return {pid, start_of(stat_fields(pid))};
}

bool is_alive(const ProcessId& process) {
  const std::string fields = stat_fields(process.pid);
  if (fields.size() < 2 || fields[1] == 'Z' || fields[1] == 'X') return false;
  return start_of(fields) == process.start;
}

}  // namespace medley
