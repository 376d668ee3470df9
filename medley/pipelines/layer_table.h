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

// What a run takes beyond its layers, for prediction and planning alike. The defaults are those of
// the published campaigns (benchmarks/planner/README.md).
struct RunConstants {
  // Bytes of parameters, gradients and optimizer state for each byte of parameters: fp32 and Adam.
  double state = 4;
  double saved = 1.1;  // times what the layers say
  // Of every device: context, workspaces, communicators. Nothing: kFixedShare of its memory.
  std::optional<Bytes> fixed;
  // How much longer gradients take to be added up than a link at its measured bandwidth would need.
  double all_reduce = 1;
  // 0: transfers between stages run beside their calls, as Medley runs them. Otherwise both stages
  // stand still for this many times what the link takes, at each end, for what each of the devices
  // that divide a layer sends: all of it.
  double blocking = 1;
  bool operator==(const RunConstants&) const = default;
};
constexpr double kFixedShare = 0.05;

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
