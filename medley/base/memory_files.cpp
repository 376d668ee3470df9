#include "medley/base/memory_files.h"

#include <fmt/format.h>

#include <filesystem>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

std::string normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  if (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

[[noreturn]] void fail(const std::string& path, const char* action, const char* reason) {
  throw Error(Blame::kEnvironment, fmt::format("{}: cannot {}: {}", path, action, reason));
}

}  // namespace

void MemoryFiles::crash() {
  names_ = durable_names_;
  for (; !renamed_.empty(); renamed_.pop_back())
    move_directory(renamed_.back().second, renamed_.back().first);
  for (auto& [name, file] : names_) file->now = file->durable;
}

bool MemoryFiles::exists(const std::string& path) {
  return names_.contains(normal(path)) || directories_.contains(normal(path));
}

FileKind MemoryFiles::kind(const std::string& path) {
  if (directories_.contains(normal(path))) return FileKind::kDirectory;
  return names_.contains(normal(path)) ? FileKind::kRegular : FileKind::kNothing;
}

std::string MemoryFiles::resolve(const std::string& path) { return normal(path); }

int64_t MemoryFiles::size(const std::string& path) {
  return static_cast<int64_t>(find(path, "read").now.size());
}

std::string MemoryFiles::read(const std::string& path) { return find(path, "read").now; }

std::string MemoryFiles::read_range(const std::string& path, int64_t offset, int64_t count) {
  const std::string& bytes = find(path, "read").now;
  if (offset + count > static_cast<int64_t>(bytes.size())) {
    throw Error(
        Blame::kEnvironment,
        fmt::format("{}: ends after {} bytes, expected {}", path, bytes.size(), offset + count));
  }
  return bytes.substr(at(offset), at(count));
}

std::vector<std::string> MemoryFiles::list(const std::string& directory) {
  if (!directories_.contains(normal(directory))) fail(directory, "list", "no such directory");
  std::set<std::string> found;
  auto add = [&](const std::string& path) {
    if (path != normal(directory) && normal(parent_path(path)) == normal(directory)) {
      found.insert(std::filesystem::path(path).filename().string());
    }
  };
  for (const auto& [path, file] : names_) add(path);
  for (const std::string& path : directories_) add(path);
  return {found.begin(), found.end()};
}

void MemoryFiles::write(const std::string& path, std::string_view bytes) {
  require_parent(path, "write");
  auto& file = names_[normal(path)];
  if (!file) file = std::make_shared<File>();
  if (room_) *room_ += std::ssize(file->now);
  file->now.clear();
  add(path, file->now, bytes);
}

void MemoryFiles::append(const std::string& path, std::string_view bytes) {
  require_parent(path, "write");
  auto& file = names_[normal(path)];
  if (!file) file = std::make_shared<File>();
  add(path, file->now, bytes);
}

void MemoryFiles::add(const std::string& path, std::string& to, std::string_view bytes) {
  const bool fails = this_call_fails();
  const bool fits = !room_ || std::ssize(bytes) <= *room_;
  const size_t done = fails ? bytes.size() / 2 : fits ? bytes.size() : at(*room_);
  to += bytes.substr(0, done);
  if (room_) *room_ -= static_cast<int64_t>(done);
  if (fails) fail(path, "write", "injected failure");
  if (!fits) fail(path, "write", "No space left on device");
}

void MemoryFiles::create(const std::string& path, std::string_view bytes, const std::string&) {
  if (exists(path)) fail(path, "write", "there is such a file");
  write(path, bytes);
}

void MemoryFiles::sync(const std::string& path) {
  count_call(path);
  if (!directories_.contains(normal(path))) {
    File& file = find(path, "sync");
    file.durable = file.now;
    return;
  }
  auto inside = [&](const auto& entry) { return normal(parent_path(entry.first)) == normal(path); };
  std::erase_if(renamed_,
                [&](const auto& each) { return normal(parent_path(each.second)) == normal(path); });
  std::erase_if(durable_names_, inside);
  for (const auto& entry : names_) {
    if (inside(entry)) durable_names_.insert(entry);
  }
}

void MemoryFiles::rename(const std::string& from, const std::string& to) {
  count_call(from);
  require_parent(to, "rename");
  if (directories_.contains(normal(from))) {
    if (exists(to)) fail(from, "rename", "there is something of the new name");
    move_directory(normal(from), normal(to));
    renamed_.emplace_back(normal(from), normal(to));
    return;
  }
  find(from, "rename");
  auto moved = names_.extract(normal(from));
  names_.insert_or_assign(normal(to), moved.mapped());
}

void MemoryFiles::remove(const std::string& path) {
  count_call(path);
  if (room_) *room_ += std::ssize(find(path, "remove").now);
  find(path, "remove");
  names_.erase(normal(path));
}

void MemoryFiles::remove_directory(const std::string& path) {
  count_call(path);
  if (!list(path).empty()) fail(path, "remove", "it is not empty");
  const std::string inside = normal(path) + "/";
  std::erase_if(durable_names_, [&](const auto& entry) { return entry.first.starts_with(inside); });
  directories_.erase(normal(path));
}

void MemoryFiles::move_directory(const std::string& from, const std::string& to) {
  const auto moved = [&](const std::string& path) {
    return path == from || path.starts_with(from + "/") ? to + path.substr(from.size()) : path;
  };
  std::set<std::string> directories;
  for (const std::string& path : directories_) directories.insert(moved(path));
  directories_ = std::move(directories);
  for (Names* names : {&names_, &durable_names_}) {
    Names changed;
    for (const auto& [path, file] : *names) changed.emplace(moved(path), file);
    *names = std::move(changed);
  }
}

void MemoryFiles::make_directories(const std::string& path) {
  count_call(path);
  for (std::string at = normal(path); directories_.insert(at).second;) at = parent_path(at);
}

MemoryFiles::File& MemoryFiles::find(const std::string& path, const char* action) {
  auto entry = names_.find(normal(path));
  if (entry == names_.end()) fail(path, action, "no such file");
  return *entry->second;
}

void MemoryFiles::require_parent(const std::string& path, const char* action) {
  if (!directories_.contains(normal(parent_path(path)))) fail(path, action, "no such directory");
}

bool MemoryFiles::this_call_fails() { return fail_at_ == calls_++; }

void MemoryFiles::count_call(const std::string& path) {
  if (this_call_fails()) fail(path, "reach the disk", "injected failure");
}

}  // namespace medley
