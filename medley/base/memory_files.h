#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "medley/base/files.h"

namespace medley {

// Files in memory for tests: `crash` drops what was not synced, `fail_call` makes one call fail.
// Like a real disk it keeps contents and names apart: a new file survives a crash once both the
// file and its directory were synced. Directories are made and removed durably at once, and renamed
// once the one above them was synced.
class MemoryFiles : public Files {
 public:
  // Returns to what is durable, as after a power cut.
  void crash();
  // The n-th changing call from now on (0 is the next one) fails; a failing write or append leaves
  // half of its bytes.
  void fail_call(int n) { fail_at_ = calls_ + n; }
  // From now on there is room for so many bytes more: a write that needs more fails, and leaves
  // what has fitted. What is removed makes room.
  void set_room(int64_t bytes) { room_ = bytes; }
  // How many changing calls (write, append, create, sync, rename, remove, remove_directory,
  // make_directories) there were.
  int calls() const { return calls_; }

  bool exists(const std::string& path) override;
  FileKind kind(const std::string& path) override;
  std::string resolve(const std::string& path) override;  // there are no links here
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

 private:
  struct File {
    std::string now;
    std::string durable;
  };
  using Names = std::map<std::string, std::shared_ptr<File>>;

  File& find(const std::string& path, const char* action);
  void require_parent(const std::string& path, const char* action);
  void move_directory(const std::string& from, const std::string& to);
  void add(const std::string& path, std::string& to, std::string_view bytes);
  bool this_call_fails();
  void count_call(const std::string& path);

  Names names_;
  Names durable_names_;
  std::set<std::string> directories_ = {".", "/"};
  std::vector<std::pair<std::string, std::string>> renamed_;  // directories, not durable yet
  std::optional<int64_t> room_;
  int calls_ = 0;
  std::optional<int> fail_at_;
};

}  // namespace medley
