#pragma once

// Measured costs of the layers of a model: forward, backward and update time by device type,
// tensor-parallel degree and rows, and bytes. Stored as JSON (docs/formats/layers.md). Knows no
// graphs, no clusters and no plans.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/units.h"

namespace medley {

// Bytes of one type of layer, on each device that divides it, per row.
struct LayerBytes {
  Bytes parameters;  // independent of rows
  Bytes saved;       // from forward to backward
  Bytes output;      // input of the next layer, undivided
  // Part of `parameters` in one tensor that is shared by all layers with `tied` bytes.
  Bytes tied = {};
  bool operator==(const LayerBytes&) const = default;
};

// Times of one type of layer for some rows; the update is per step.
struct LayerTimes {
  Nanoseconds forward, backward, update;
  bool operator==(const LayerTimes&) const = default;
};

struct MeasuredBytes {
  int tensor_parallel = 1;
  std::map<std::string, LayerBytes> kinds;  // all that `layers` names
  bool operator==(const MeasuredBytes&) const = default;
};

struct MeasuredTimes {
  std::string device;  // a device type
  int tensor_parallel = 1;
  int64_t rows = 1;                         // per replica
  std::map<std::string, LayerTimes> kinds;  // all that `layers` names
  bool operator==(const MeasuredTimes&) const = default;
};

// A program that runs pipelines, by its source (docs/formats/layers.md). Each sends every byte
// between stages once.
struct KnownRuntime {
  std::string_view name;
  // Bytes of parameters, gradients and optimizer state for each byte of parameters: f32 and Adam.
  double state;
  double blocking;             // idle time of both stages, in transfers; 0: transfers overlap calls
  Bytes fixed, fixed_divided;  // beyond workspaces: for whole, and for divided layers
};
inline constexpr std::array kRuntimes{
    KnownRuntime{"medley", 4, 0, {}, {}},
    KnownRuntime{"megatron-deepspeed", 6, 1, {2'000'000'000}, {3'000'000'000}},
};

// Costs of a run beyond its layers, for prediction and planning: those of a runtime, or measured by
// the table's own run.
struct RunConstants {
  double state = kRuntimes[0].state;
  double saved = 1;            // factor on the bytes that layers save
  std::optional<Bytes> fixed;  // per device; nullopt: those of the runtime
  double all_reduce = 1;       // factor on gradient sums over links at full bandwidth
  double blocking = kRuntimes[0].blocking;
  size_t runtime = 0;  // in kRuntimes
  bool operator==(const RunConstants&) const = default;
};

struct LayerTable {
  std::string model, source;        // informative
  std::vector<std::string> layers;  // the type of each, first to last
  RunConstants run;
  std::vector<MeasuredBytes> bytes;  // ascending in tensor_parallel
  std::vector<MeasuredTimes> times;  // unique, sorted by device, tensor_parallel, rows
  bool operator==(const LayerTable&) const = default;
};

// Prints a form that parses back equal.
std::string print(const LayerTable& table);
// Returns whether the text claims to be a layer table, even an invalid one.
bool is_layer_table(std::string_view json);
// Strict; entries in any order. Throws Error(kCaller) "<file>: <place>: found ..., expected ...".
LayerTable parse_layer_table(std::string_view json, std::string_view file);
std::string hash(const LayerTable& table);  // SHA-256 of the printed table

}  // namespace medley
