#include "medley/checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "medley/base/error.h"
#include "medley/base/sha256.h"

namespace medley {
namespace {

constexpr std::string_view kStep = "step-";
constexpr const char* kTemporary = ".tmp";
// The checkpoint that a newer one of the same step is about to replace: valid until then.
constexpr const char* kReplaced = ".replaced";
constexpr const char* kManifest = "manifest.json";
constexpr const char* kCommit = "COMMIT";

std::string final_folder(const std::string& folder, int64_t step) {
  return join_path(folder, fmt::format("{}{:08}", kStep, step));
}

struct ParsedName {
  int64_t step = -1;  // -1: another entry
  std::string end;    // after the number
};

ParsedName parse_name(std::string_view name) {
  ParsedName parsed;
  if (!name.starts_with(kStep)) return parsed;
  name.remove_prefix(kStep.size());
  int64_t step = -1;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  const auto digits = static_cast<size_t>(rest - name.data());
  if (error != std::errc() || step < 0 || digits < 8) return parsed;
  const std::string_view end = name.substr(digits);
  if (end.empty() || end == kTemporary || end == kReplaced) parsed = {step, std::string(end)};
  return parsed;
}

void remove_folder(Files& files, const std::string& path) {
  // Removes the COMMIT first.
  if (const std::string commit = join_path(path, kCommit); files.exists(commit)) {
    files.remove(commit);
    files.sync(path);
  }
  for (const std::string& name : files.list(path)) files.remove(join_path(path, name));
  files.remove_directory(path);
}

void write_synced(Files& files, const std::string& path, std::string_view bytes) {
  files.write(path, bytes);
  files.sync(path);
}

}  // namespace

std::vector<FoundCheckpoint> find_checkpoints(Files& files, const std::string& folder) {
  std::vector<std::pair<std::string, FoundCheckpoint>> found;
  if (!files.exists(folder)) return {};
  for (const std::string& name : files.list(folder)) {
    const ParsedName parsed = parse_name(name);
    if (parsed.step < 0 || parsed.end == kTemporary) continue;
    const std::string path = join_path(folder, name);
    found.push_back({parsed.end, {path, parsed.step, files.exists(join_path(path, kCommit))}});
  }
  std::ranges::sort(
      found, {}, [](const auto& each) { return std::pair(-each.second.step, each.first); });
  std::vector<FoundCheckpoint> checkpoints;
  for (auto& [end, each] : found) checkpoints.push_back(std::move(each));
  return checkpoints;
}

std::string temporary_folder(const std::string& folder, int64_t step) {
  return final_folder(folder, step) + kTemporary;
}

void begin_checkpoint(Files& files, const std::string& folder, int64_t step) {
  drop_checkpoint(files, folder, step);
  files.make_directories(temporary_folder(folder, step));
}

void drop_checkpoint(Files& files, const std::string& folder, int64_t step) {
  const std::string path = temporary_folder(folder, step);
  if (files.exists(path)) remove_folder(files, path);
}

void commit_checkpoint(Files& files, const std::string& folder, const Manifest& manifest) {
  const int64_t step = manifest.state.step;
  const std::string temporary = temporary_folder(folder, step);
  const std::string path = final_folder(folder, step), replaced = path + kReplaced;
  const std::string text = print(manifest);
  if (std::ssize(text) > Files::kMostBytes)
    throw Error(Blame::kEnvironment,
                fmt::format("{}: found a manifest of {} bytes, expected at most {}",
                            path,
                            text.size(),
                            Files::kMostBytes));
  write_synced(files, join_path(temporary, kManifest), text);
  write_synced(files, join_path(temporary, kCommit), sha256_hex(text) + "\n");
  files.sync(temporary);
  if (files.exists(path)) {
    if (files.exists(replaced)) remove_folder(files, replaced);
    files.rename(path, replaced);
  }
  files.rename(temporary, path);
  files.sync(folder);
}

void retire_checkpoints(Files& files, const std::string& folder, const Retention& retention) {
  MEDLEY_CHECK(retention.keep >= 1);
  int64_t kept = 0, newest = -1, last = -1;
  for (const FoundCheckpoint& each : find_checkpoints(files, folder)) {
    const bool is_newest = each.is_complete && newest < 0;
    if (is_newest) newest = each.step;
    const bool is_multiple = retention.keep_every > 0 && each.step % retention.keep_every == 0;
    const bool stays =
        each.is_complete && each.step != last && (kept < retention.keep || is_multiple);
    if (stays) last = each.step;
    if (stays)
      ++kept;
    else if (newest >= 0)  // keeps all until a newer one is complete
      remove_folder(files, each.path);
  }
  for (const std::string& name : files.list(folder)) {
    const ParsedName parsed = parse_name(name);
    if (parsed.end == kTemporary && parsed.step <= newest)
      remove_folder(files, join_path(folder, name));
  }
  files.sync(folder);
}

Manifest open_checkpoint(Files& files, const std::string& path) {
  const std::string commit = join_path(path, kCommit), manifest = join_path(path, kManifest);
  for (const std::string& each : {commit, manifest})
    if (!files.exists(each))
      throw Error(Blame::kCaller,
                  fmt::format("{}: found no {}, expected a complete checkpoint",
                              path,
                              each.substr(path.size() + 1)));
  constexpr int64_t kCommitBytes = 65;  // one more marks another content
  const std::string text = files.read(manifest);
  const std::string expected =
      files.read_range(commit, 0, std::min(files.size(commit), kCommitBytes + 1));
  if (const std::string found = sha256_hex(text) + "\n"; found != expected)
    throw Error(Blame::kCaller,
                fmt::format("{}: found the SHA-256 {}, expected what COMMIT says",
                            manifest,
                            found.substr(0, found.size() - 1)));
  return parse_manifest(text, manifest);
}

}  // namespace medley
