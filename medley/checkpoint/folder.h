#pragma once

// A folder of checkpoints, one for each step that was saved. Whatever ends a process or a machine,
// and whenever: what was complete stays, and what is not complete nobody reads.
//
//   step-00001200.tmp/   *.safetensors, manifest.json, COMMIT   each synced, COMMIT last
//   step-00001200/       the same, renamed
//   step-00001100/       goes once the newer one is durable
//
// One process changes a folder at a time; who that is, the caller decides.

#include <string>
#include <vector>

#include "medley/base/files.h"
#include "medley/checkpoint/manifest.h"

namespace medley {

struct FoundCheckpoint {
  std::string path;
  int64_t step = 0;
  bool is_complete = false;  // it has a COMMIT
};
// Newest first. A folder without any, or that is not there, has none.
std::vector<FoundCheckpoint> find_checkpoints(Files& files, const std::string& folder);

// Where the files of a checkpoint are written before it is complete.
std::string temporary_folder(const std::string& folder, int64_t step);
// Makes it, empty.
void begin_checkpoint(Files& files, const std::string& folder, int64_t step);
// Completes a checkpoint whose files are written and synced; the one of this step, if there is one,
// is replaced.
void commit_checkpoint(Files& files, const std::string& folder, const Manifest& manifest);
// Removes what begin_checkpoint() made.
void drop_checkpoint(Files& files, const std::string& folder, int64_t step);

struct Retention {
  int64_t keep = 3;        // the newest so many; at least 1
  int64_t keep_every = 0;  // and those whose step is a multiple; 0: none
};
// Removes the others, and what failures have left.
void retire_checkpoints(Files& files, const std::string& folder, const Retention& retention);

// Reads the manifest of a checkpoint. Throws Error(kCaller) naming the file for one that is not
// complete, or whose manifest is not the one that was committed.
Manifest open_checkpoint(Files& files, const std::string& path);

}  // namespace medley
