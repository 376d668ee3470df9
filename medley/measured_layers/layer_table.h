#pragma once

// What the layers of a model take, measured by whoever it was: forward, backward and update time by
// kind of device, tensor-parallel degree and rows, and bytes. Stored as JSON
// (docs/formats/layers.md). Knows no graphs, no clusters and no plans.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "medley/base/units.h"

namespace medley {

// Of one kind of layer, on each of the devices that divide it, for one row.
struct LayerBytes {
  Bytes parameters;  // not by row
  Bytes saved;       // from forward to backward
  Bytes output;      // what goes on to the next layer, whole: not divided
  // Of `parameters`: one tensor, the same in all layers that have some.
  Bytes tied = {};
  bool operator==(const LayerBytes&) const = default;
};

// Of one kind of layer for some rows; the update is of a step.
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
  std::string device;  // a kind of device
  int tensor_parallel = 1;
  int64_t rows = 1;                         // of one replica
  std::map<std::string, LayerTimes> kinds;  // all that `layers` names
  bool operator==(const MeasuredTimes&) const = default;
};

// A program that runs pipelines, by its source (docs/formats/layers.md). All of them send each byte
// between stages once.
struct KnownRuntime {
  std::string_view name;
  // Bytes of parameters, gradients and optimizer state for each byte of parameters: f32 and Adam.
  double state;
  double blocking;  // so many times a transfer both stages stand still; 0: it overlaps with calls
  Bytes fixed, fixed_divided;  // beside workspaces, where devices have whole layers or divide them
};
inline constexpr std::array kRuntimes{
    KnownRuntime{"medley", 4, 0, {}, {}},
    KnownRuntime{"megatron-deepspeed", 6, 1, {2'000'000'000}, {3'000'000'000}},
};

// What a run takes beyond its layers, for prediction and planning alike: the figures of a runtime,
// or those that a table has from its own run.
struct RunConstants {
  double state = kRuntimes[0].state;
  double saved = 1;            // times the bytes that layers save
  std::optional<Bytes> fixed;  // of every device; nothing: those of the runtime
  double all_reduce = 1;       // times the sum of gradients over links at their bandwidth
  double blocking = kRuntimes[0].blocking;
  size_t runtime = 0;  // in kRuntimes
  bool operator==(const RunConstants&) const = default;
};

struct LayerTable {
  std::string model, source;        // for people
  std::vector<std::string> layers;  // the kind of each, first to last
  RunConstants run;
  std::vector<MeasuredBytes> bytes;  // ascending in tensor_parallel
  std::vector<MeasuredTimes> times;  // sorted by device, tensor_parallel, rows; each once
  bool operator==(const LayerTable&) const = default;
};

// What is printed parses back equal.
std::string print(const LayerTable& table);
// Whether the text says that it is one, whatever else is wrong with it.
bool is_layer_table(std::string_view json);
// Strict, entries in any order. Throws Error(kCaller) "<file>: <place>: found ..., expected ...".
LayerTable parse_layer_table(std::string_view json, std::string_view file);
std::string hash(const LayerTable& table);  // SHA-256 of the printed table

}  // namespace medley
