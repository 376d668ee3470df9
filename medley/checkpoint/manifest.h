#pragma once

// What a checkpoint says about itself (docs/formats/checkpoint.md): of every value the boxes that
// together are the whole, each in one file; and where training was. Knows nothing of who wrote it
// or will read it: an inventory of what lies in memory, or with a peer, is the same.

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

// A value of a run: a parameter, a buffer, or of the optimizer's state a moment or a master copy,
// which are called "exp_avg:<parameter>" and the like.
struct StoredValue {
  std::string kind, name;  // "parameter", "buffer" or "state"
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  FactorSizes factors;
  std::vector<Box> boxes;  // apart, together the whole
  std::vector<int> files;  // [box] into Manifest::files
  bool operator==(const StoredValue&) const = default;
};

// The tensor in a file that has a box: the name of the value, followed by "@<box>" where it has
// several.
std::string tensor_name(const StoredValue& value, size_t box);

struct StoredFile {
  std::string name;
  int64_t bytes = 0;
  std::string header_sha256;
  bool operator==(const StoredFile&) const = default;
};

// Where the rows of the next step are: the number of its global batch within an epoch, and the seed
// of the order.
struct DataCursor {
  int64_t epoch = 0, batch = 0, seed = 0;
  bool operator==(const DataCursor&) const = default;
};

using Fact = std::variant<bool, int64_t, double, std::string>;

struct TrainingState {
  int64_t step = 0;  // steps done
  int64_t global_batch = 0;
  int64_t seed = 0;  // of dropout
  std::optional<DataCursor> data;
  std::map<std::string, Fact> optimizer;  // its description
  std::string schedule;                   // of the learning rate; "" if it cannot be described
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
// belong to the parameters: all optimizers have the same.
std::string stored_name(const std::string& kind,
                        const std::string& name,
                        const std::string& prefix);
// Returns the part of a checkpoint that one of them reads: the shared values `among`, and its own
// state without the prefix.
Manifest part_of(const Manifest& manifest,
                 const std::set<std::pair<std::string, std::string>>& among,
                 const std::string& prefix);

// What is printed parses back equal.
std::string print(const Manifest& manifest);
// Throws Error(kCaller) "<file>: <place>: found ..., expected ..." for anything that is no manifest
// of this version, that names files outside of its folder, or whose boxes lie over one another or
// leave some of a value out.
Manifest parse_manifest(std::string_view json, const std::string& file);

// Throws Error(kCaller) "<file>: <kind> "<name>": ..." if the boxes of a value are not the whole,
// each element once.
void verify(const Manifest& manifest, const std::string& file);

}  // namespace medley
