#pragma once

// A folder of checkpoints, one per saved step. If a process or machine fails at any time, complete
// checkpoints stay, and incomplete ones are never read.
//
//   step-00001200.tmp/   *.safetensors, manifest.json, COMMIT   each synced, COMMIT last
//   step-00001200/       the same, renamed
//   step-00001100/       removed once the newer one is durable
//
// Requires: one process changes a folder at a time.

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
// Returns the checkpoints, newest first; none for an empty or missing folder.
std::vector<FoundCheckpoint> find_checkpoints(Files& files, const std::string& folder);

// Returns the folder for the files of an incomplete checkpoint.
std::string temporary_folder(const std::string& folder, int64_t step);
// Creates that folder, empty.
void begin_checkpoint(Files& files, const std::string& folder, int64_t step);
// Completes a checkpoint whose files are written and synced. Replaces an existing one of the same
// step.
void commit_checkpoint(Files& files, const std::string& folder, const Manifest& manifest);
// Removes the folder that begin_checkpoint() created.
void drop_checkpoint(Files& files, const std::string& folder, int64_t step);

struct Retention {
  int64_t keep = 3;        // the newest ones to keep; at least 1
  int64_t keep_every = 0;  // also keep steps that are multiples of this; 0: none
};
// Removes the other checkpoints, and the remains of failures.
void retire_checkpoints(Files& files, const std::string& folder, const Retention& retention);

// Returns the manifest of a checkpoint. Throws Error(kCaller) naming the file if it is incomplete,
// or if its manifest is not the committed one.
Manifest open_checkpoint(Files& files, const std::string& path);

}  // namespace medley
