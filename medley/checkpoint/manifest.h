#pragma once

// The manifest of a checkpoint (docs/formats/checkpoint.md): for every value the boxes that form
// the whole, each in one file, and the state of training. Knows no writer and no reader: an
// inventory of memory, local or of a peer, is the same.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "medley/boxes/layout.h"
#include "medley/graph/dtype.h"

namespace medley {

// A value of a run: a parameter, a buffer, or a moment or master copy of the optimizer's state,
// which is called "exp_avg:<parameter>" and the like.
struct StoredValue {
  std::string kind, name;  // "parameter", "buffer" or "state"
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  FactorSizes factors;
  std::vector<Box> boxes;  // disjoint, together the whole
  std::vector<int> files;  // [box] into Manifest::files
  bool operator==(const StoredValue&) const = default;
};

// Returns the tensor's name in a file: that of the value, with "@<box>" appended if it has several
// boxes.
std::string tensor_name(const StoredValue& value, size_t box);

struct StoredFile {
  std::string name;
  int64_t bytes = 0;
  std::string header_sha256;
  bool operator==(const StoredFile&) const = default;
};

// The position of the next step in the data: the global batch within an epoch, and the seed of the
// order.
struct DataCursor {
  int64_t epoch = 0, batch = 0, seed = 0;
  bool operator==(const DataCursor&) const = default;
};

using Fact = std::variant<bool, int64_t, double, std::string>;

struct TrainingState {
  int64_t step = 0;  // completed steps
  int64_t global_batch = 0;
  int64_t seed = 0;  // for dropout
  std::optional<DataCursor> data;
  std::map<std::string, Fact> optimizer;  // its description
  std::string schedule;                   // learning rates; "" if it has no description
  std::string graph, plan, cluster;       // hashes
  std::map<std::string, std::string> versions;
  bool operator==(const TrainingState&) const = default;
};

struct Manifest {
  TrainingState state;
  std::vector<StoredFile> files;
  std::vector<StoredValue> values;
  bool operator==(const Manifest&) const = default;
};

// Returns the name of a value of one of several optimizers over the same parameters. Master copies
// belong to the parameters, so all optimizers share them.
std::string stored_name(const std::string& kind,
                        const std::string& name,
                        const std::string& prefix);
// Returns the part of a checkpoint that one optimizer reads: the shared values `among`, and its own
// state without the prefix.
Manifest part_of(const Manifest& manifest,
                 const std::set<std::pair<std::string, std::string>>& among,
                 const std::string& prefix);

// Returns JSON that parse_manifest() parses to an equal manifest.
std::string print(const Manifest& manifest);
// Throws Error(kCaller) "<file>: <place>: found ..., expected ..." for other versions and formats,
// for files outside of the folder, and if boxes overlap or leave gaps.
Manifest parse_manifest(std::string_view json, const std::string& file);

// Throws Error(kCaller) "<file>: <kind> "<name>": ..." unless the boxes of each value contain every
// element once.
void verify(const Manifest& manifest, const std::string& file);

}  // namespace medley
