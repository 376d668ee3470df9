#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "medley/base/files.h"

namespace medley {

// Files in memory for tests: `crash` drops unsynced data, `fail_call` makes one call fail. Contents
// and names are separate, as on a disk: a new file survives a crash after both the file and its
// directory were synced. Creating and removing directories is durable immediately; renaming one
// requires a sync of its parent.
class MemoryFiles : public Files {
 public:
  // Restores the durable state, as after a power cut.
  void crash();
  // Makes the n-th changing call from now fail (0 is the next). A failing write or append leaves
  // half of its bytes.
  void fail_call(int n) { fail_at_ = calls_ + n; }
  // Sets the free space in bytes. A write that needs more fails and leaves the part that fits.
  // Removing files frees space.
  void set_room(int64_t bytes) { room_ = bytes; }
  // Returns the number of changing calls: write, append, create, sync, rename, remove,
  // remove_directory, make_directories.
  int calls() const { return calls_; }

  bool exists(const std::string& path) override;
  FileKind kind(const std::string& path) override;
  std::string resolve(const std::string& path) override;  // no links
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
