// The manifest and read plan of a model of 70 billion parameters with the state of AdamW: 80 layers
// of 8,192, weights in bf16, master copies and two moments in fp32. It is written by 64 devices as
// 8 by 8, with tensors cut in 8 and the state in 64, and read by 64 devices as 16 stages of 4.
// Tensors have no bytes here: only ranges are computed.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/checkpoint/read.h"
#include "medley/checkpoint/write_plan.h"

namespace medley {
namespace {

constexpr int kLayers = 80, kDevices = 64, kStages = 16;
constexpr int64_t kWidth = 8192, kHidden = 28672, kKeys = 1024, kTokens = 128256;

struct Weight {
  std::string name;
  std::vector<int64_t> shape;
  int cut;    // the tensor-parallel dim; -1: none
  int layer;  // kLayers: after all
};

std::vector<Weight> weights() {
  std::vector<Weight> all{{"embed", {kTokens, kWidth}, 0, 0}};
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto add = [&](const char* name, std::vector<int64_t> shape, int cut) {
      all.push_back({fmt::format("layers.{}.{}", layer, name), std::move(shape), cut, layer});
    };
    add("q", {kWidth, kWidth}, 0);
    add("k", {kKeys, kWidth}, 0);
    add("v", {kKeys, kWidth}, 0);
    add("o", {kWidth, kWidth}, 1);
    add("gate", {kHidden, kWidth}, 0);
    add("up", {kHidden, kWidth}, 0);
    add("down", {kWidth, kHidden}, 1);
    add("norm1", {kWidth}, -1);
    add("norm2", {kWidth}, -1);
  }
  all.push_back({"norm", {kWidth}, -1, kLayers});
  all.push_back({"head", {kTokens, kWidth}, 0, kLayers});
  return all;
}

std::vector<int64_t> points(int64_t size, int64_t devices) {
  std::vector<int64_t> found;
  for (int64_t i = 0; i <= devices; ++i) found.push_back(size * i / devices);
  return found;
}

// Returns the layout on `outer` by `inner` devices: the inner axis is tensor parallelism, the outer
// one cuts state.
Layout layout(const Weight& weight, int64_t outer, int64_t inner, bool is_state) {
  Placement placement{replicated(), replicated()};
  std::vector<CutPoints> cuts(2);
  if (weight.cut >= 0) {
    placement[1] = sharded(weight.cut, 0);
    cuts[1] = {points(weight.shape[at(weight.cut)], inner)};
  }
  const int other = weight.cut == 0 ? 1 : 0;
  if (is_state && other < std::ssize(weight.shape)) {
    placement[0] = sharded(other, 0);
    cuts[0] = {points(weight.shape[at(other)], outer)};
  }
  return layout_of(weight.shape, placement, {outer, inner}, cuts);
}

struct Kind {
  const char *kind, *prefix;
  DType dtype;
  bool is_state;
};
constexpr Kind kKinds[] = {{"parameter", "", DType::kBF16, false},
                           {"state", "master:", DType::kF32, true},
                           {"state", "exp_avg:", DType::kF32, true},
                           {"state", "exp_avg_sq:", DType::kF32, true}};

std::vector<HeldValue> held_by_writers() {
  std::vector<HeldValue> values;
  for (const Weight& weight : weights())
    for (const Kind& kind : kKinds)
      values.push_back({kind.kind,
                        kind.prefix + weight.name,
                        kind.dtype,
                        weight.shape,
                        {{0, 0, layout(weight, 8, 8, kind.is_state)}}});
  return values;
}

std::vector<WantedBoxes> wanted_by(int device) {
  const int stage = device / 4, place = device % 4;
  std::vector<WantedBoxes> wanted;
  for (const Weight& weight : weights()) {
    if (std::min(weight.layer, kLayers - 1) * kStages / kLayers != stage) continue;
    for (const Kind& kind : kKinds) {
      Layout all = layout(weight, 1, 4, false);
      const Box box = all.boxes[at(all.box_of[at(place)])];
      wanted.push_back({kind.kind,
                        kind.prefix + weight.name,
                        kind.dtype,
                        weight.shape,
                        {all.factors, {box}, {}, {}},
                        {}});
    }
  }
  return wanted;
}

Manifest make() {
  WritePlan planned = plan_writes(held_by_writers(), {kDevices});
  Manifest manifest;
  manifest.values = std::move(planned.values);
  for (const int writer : planned.writers)
    manifest.files.push_back({fmt::format("{}.safetensors", writer), 0, std::string(64, '0')});
  return manifest;
}

void write_manifest(benchmark::State& state) {
  size_t bytes = 0;
  for (auto _ : state) bytes = print(make()).size();
  state.counters["bytes"] = static_cast<double>(bytes);
}

void read_manifest(benchmark::State& state) {
  const std::string text = print(make());
  size_t boxes = 0;
  for (auto _ : state) {
    boxes = 0;
    for (const StoredValue& value : parse_manifest(text, "manifest.json").values)
      boxes += value.boxes.size();
  }
  state.counters["boxes"] = static_cast<double>(boxes);
}

// Finds the ranges of all devices, one after the other. Checks that no range begins before the
// previous one ends, and that no tensor appears twice, so each byte is read once.
void find_ranges(benchmark::State& state) {
  const Manifest manifest = make();
  int64_t read = 0, wanted = 0;
  for (auto _ : state) {
    read = wanted = 0;
    for (int device = 0; device < kDevices; ++device) {
      const std::vector<WantedBoxes> mine = wanted_by(device);
      for (const WantedBoxes& each : mine)
        wanted += volume(each.layout.boxes[0]) * bytes_per_element(each.dtype);
      for (const auto& file : plan_reads(manifest, "run", mine)) {
        std::set<std::pair<int, int>> tensors;
        for (const TensorReads& reads : file) {
          MEDLEY_CHECK(tensors.emplace(reads.value, reads.box).second);
          int64_t end = 0;
          for (const IndexInterval& range :
               ranges_of(reads, tensor_bytes(manifest.values[at(reads.value)], reads.box))) {
            MEDLEY_CHECK(range.begin >= end);
            end = range.end;
            read += range.size();
          }
        }
      }
    }
  }
  state.counters["read/wanted"] = static_cast<double>(read) / static_cast<double>(wanted);
  state.counters["terabytes"] = static_cast<double>(wanted) * 1e-12;
}

BENCHMARK(write_manifest)->Unit(benchmark::kMillisecond);
BENCHMARK(read_manifest)->Unit(benchmark::kMillisecond);
BENCHMARK(find_ranges)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace medley
