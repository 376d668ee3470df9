#include "medley/checkpoint/read.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>
#include <numeric>
#include <random>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/memory_files.h"
#include "medley/checkpoint/match.h"
#include "medley/checkpoint/write.h"
#include "medley/checkpoint/write_plan.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/prepare/prepare.h"
#include "medley/testing/random_plan.h"

namespace medley {
namespace {

constexpr int kSeeds = 60;
constexpr int kDevices = 6;
const std::string kFolder = "step-00000001";

std::vector<std::string> names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back("a/" + std::to_string(i) + "/0");
  return names;
}

// Returns several pipelines, or a 1-D or 2-D mesh, with states placed apart from their parameters.
Program random_program(const Graph& graph, uint64_t seed, const Optimizer& optimizer = {}) {
  const Cluster cluster = [] {
    Cluster cluster;
    cluster.pools = {{"a", kDevices, 1, {}, false, 0}};
    cluster.devices = list_devices(cluster.pools);
    return cluster;
  }();
  const int count = 1 + static_cast<int>(seed * 7 % kDevices);
  const auto draw = seed % 3 == 0   ? random_plan
                    : seed % 3 == 1 ? random_pipeline
                                    : random_pipelines;
  return lower(graph, draw(graph, names(std::max(2, count)), 12, seed), cluster, optimizer);
}

// Every device's part of every value; element e of value v has the bytes of v, e.
struct Memory {
  std::vector<HeldValue> values;
  std::map<std::tuple<int, int, int>, std::string> shards;  // by value, holder, device

  explicit Memory(const Program& program, bool filled) : values(held_values(program)) {
    for (size_t v = 0; v < values.size(); ++v) {
      const std::string whole = bytes_of(v);
      for (size_t h = 0; h < values[v].stages.size(); ++h) {
        const Layout& layout = values[v].stages[h].layout;
        for (size_t d = 0; d < layout.box_of.size(); ++d) {
          if (layout.box_of[d] == kNoBox) continue;
          const Runs runs = runs_of(layout.factors,
                                    layout.boxes[at(layout.box_of[d])],
                                    bytes_per_element(values[v].dtype));
          std::string shard(at(runs.total()), '?');
          if (filled) gather(whole.data(), runs, 0, runs.total(), shard.data());
          shards[{v, h, d}] = shard;
        }
      }
    }
  }

  std::string bytes_of(size_t v) const {
    std::string bytes(at(product_of(values[v].shape) * bytes_per_element(values[v].dtype)), '\0');
    std::mt19937 random(static_cast<unsigned>(std::hash<std::string>()(values[v].name)));
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
  }

  std::vector<WantedBoxes> wanted_by(int stage, int device) {
    std::vector<WantedBoxes> wanted;
    for (size_t v = 0; v < values.size(); ++v)
      for (size_t h = 0; h < values[v].stages.size(); ++h) {
        const HoldingStage& holder = values[v].stages[h];
        if (holder.stage != stage || holder.layout.box_of[at(device)] == kNoBox) continue;
        const Layout one{holder.layout.factors,
                         {holder.layout.boxes[at(holder.layout.box_of[at(device)])]},
                         {},
                         {}};
        wanted.push_back({values[v].kind,
                          values[v].name,
                          values[v].dtype,
                          values[v].shape,
                          one,
                          {shards.at({v, h, device}).data()}});
      }
    return wanted;
  }
};

Manifest save(Files& files, const Program& program, const Memory& memory, int64_t least_bytes) {
  files.make_directories(kFolder);
  std::vector<int> devices;
  for (const LoweredStage& stage : program.stages)
    devices.push_back(static_cast<int>(stage.devices.size()));
  const WritePlan planned = plan_writes(memory.values, devices, least_bytes);
  Manifest manifest;
  manifest.values = planned.values;
  for (size_t w = 0; w < planned.writers.size(); ++w) {
    std::vector<TensorSource> sources;
    for (const BoxWrite& each : planned.boxes[w]) {
      const Layout& layout = memory.values[at(each.value)].stages[at(each.holder)].layout;
      sources.push_back(source_of(planned.values[at(each.value)],
                                  at(each.box),
                                  layout.factors,
                                  layout.boxes[at(layout.box_of[at(each.device)])],
                                  memory.shards.at({each.value, each.holder, each.device}).data()));
    }
    manifest.files.push_back(
        write_tensors(files, kFolder, fmt::format("{}.safetensors", planned.writers[w]), sources));
  }
  return manifest;
}

Graph mlp() { return run_passes(parse_graph(LocalFiles().read("tests/data/mlp.graph"), "mlp")); }

std::string mismatch(const std::function<void(Manifest&)>& change,
                     bool parameters_only = false,
                     const Optimizer& optimizer = {}) {
  const Program program = random_program(mlp(), 0, optimizer);
  const std::vector<HeldValue> values = held_values(program);
  Manifest manifest;
  manifest.values = plan_writes(program).write_plan.values;
  change(manifest);
  try {
    require_match(manifest, "run", values, parameters_only);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Match, NamesTheFirstValueThatDiffers) {
  const auto drop = [](const std::string& name) {
    return [name](Manifest& manifest) {
      std::erase_if(manifest.values, [&](const StoredValue& value) { return value.name == name; });
    };
  };
  const auto add = [](Manifest& manifest) {
    manifest.values.push_back({"parameter", "other", DType::kF32, {2}, {2}, {{{0, 2}}}, {0}});
  };
  const auto resize = [](Manifest& manifest) {
    for (StoredValue& value : manifest.values)
      if (value.name == "fc1.bias") value.shape = {3};
  };
  EXPECT_EQ(mismatch([](Manifest&) {}), "accepted");
  EXPECT_EQ(mismatch(drop("fc1.bias")),
            "run: parameter \"fc1.bias\": found none, expected f32[32]");
  EXPECT_EQ(mismatch(resize), "run: parameter \"fc1.bias\": found f32[3], expected f32[32]");
  EXPECT_EQ(mismatch(add),
            "run: parameter \"other\": found f32[2], expected none: the run has no such value");
  EXPECT_EQ(mismatch(drop("exp_avg:fc1.bias")),
            "run: state \"exp_avg:fc1.bias\": found none, expected f32[32]");
  EXPECT_EQ(mismatch(drop("exp_avg:fc1.bias"), true), "accepted");
}

TEST(Match, AveragesMayStartFromTheWeights) {
  Optimizer averaging;
  averaging.average = 0.9;
  const auto drop = [](const std::string& beginning) {
    return [beginning](Manifest& manifest) {
      std::erase_if(manifest.values,
                    [&](const StoredValue& value) { return value.name.starts_with(beginning); });
    };
  };
  EXPECT_EQ(mismatch(drop("none"), false, averaging), "accepted");
  EXPECT_EQ(mismatch(drop(std::string(kAverageState)), false, averaging), "accepted");
  EXPECT_EQ(mismatch(drop("average:fc1.bias"), false, averaging),
            "run: state \"average:fc1.bias\": found none, expected f32[32]");
}

// Any plan's checkpoint is readable under any other: every byte on every device.
TEST(Checkpoint, IsWrittenUnderOnePlanAndReadUnderAnother) {
  const Graph graph = mlp();
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const Program before = random_program(graph, seed), after = random_program(graph, seed + 1000);
    MemoryFiles files;
    const Manifest written = save(files, before, Memory(before, true), 64);
    const Manifest manifest = parse_manifest(print(written), "manifest.json");
    ASSERT_EQ(manifest, written);
    Memory got(after, false);
    for (size_t s = 0; s < after.stages.size(); ++s)
      for (size_t d = 0; d < after.stages[s].devices.size(); ++d)
        read_checkpoint(
            files, kFolder, manifest, got.wanted_by(static_cast<int>(s), static_cast<int>(d)));
    ASSERT_EQ(got.shards, Memory(after, true).shards);
    int64_t bytes = 0;
    for (const HeldValue& value : got.values)
      bytes += product_of(value.shape) * bytes_per_element(value.dtype);
    ASSERT_EQ(check_checkpoint(files, kFolder, manifest), bytes);
  }
}

}  // namespace
}  // namespace medley
