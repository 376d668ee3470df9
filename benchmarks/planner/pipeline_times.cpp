// Times of pipeline planning on SYNTHETIC stage costs: flops of transformer layers over rates of
// devices, without a model or a measurement. They only show how long planning takes.
//
//   pipeline_times [--uneven 0.03] [--gap 0] [--gbit N] [--memory 1] [--show] [case] ...
//
// One core. One line of JSON per case: wall-clock seconds and ("cpu") seconds of this process, both
// including the computation of options.

#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <random>

#include "medley/chains/pipeline.h"

namespace {

using namespace medley;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

rusage usage() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used;
}

double cpu_now() {
  const rusage used = usage();
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

struct SyntheticPool {
  const char* name;
  int devices;
  double rate;  // flop/s
  double memory_gib;
};

struct Case {
  const char* name;
  int layers;
  double parameters;
  double hidden;
  double tokens;  // per micro-batch
  int microbatches;
  std::vector<SyntheticPool> pools;
  double gbit;  // between pools
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"gpt-2.6b-12",
       66,
       2.6e9,
       2560,
       16384,
       64,
       {{"v100", 8, 60e12, 32}, {"a100", 2, 140e12, 40}, {"a100b", 2, 140e12, 40}},
       5},
      {"llama-70b-64",
       80,
       70e9,
       8192,
       4096,
       256,
       {{"h100", 16, 400e12, 80}, {"a100", 32, 140e12, 80}, {"v100", 16, 60e12, 32}},
       25},
      {"llama-70b-256",
       80,
       70e9,
       8192,
       4096,
       512,
       {{"h100", 64, 400e12, 80},
        {"a100", 96, 140e12, 80},
        {"v100", 64, 60e12, 32},
        {"a100s", 32, 140e12, 40}},
       25},
      {"llama-70b-1024",
       80,
       70e9,
       8192,
       4096,
       512,
       {{"h100", 256, 400e12, 80},
        {"a100", 384, 140e12, 80},
        {"v100", 256, 60e12, 32},
        {"a100s", 128, 140e12, 40}},
       25},
  };
  return all;
}

// Each additional device of a mesh costs 4 % of a doubling; eight share a node.
StageOptions options_of(const Case& model, std::vector<double> share) {
  std::vector<double> until(share.size() + 1, 0);
  for (size_t l = 0; l < share.size(); ++l) until[l + 1] = until[l] + share[l];
  return [&model, until](const StageRange& range) {
    const SyntheticPool& pool = model.pools[static_cast<size_t>(range.pool)];
    const double part =
        until[static_cast<size_t>(range.end)] - until[static_cast<size_t>(range.begin)];
    const double devices = range.devices;
    const double slower = 1 + 0.04 * std::log2(devices) + (devices > 8 ? 0.1 : 0);
    const double forward =
        2 * model.parameters * part * model.tokens / (pool.rate * devices) * slower + 50e-6;
    const double held = model.tokens * model.hidden / devices;
    const double length = part * model.layers;
    const auto option = [&](double again, double saved, double transient, int id) {
      return StageOption{to_nanoseconds(Seconds{forward}),
                         to_nanoseconds(Seconds{forward * (2 + again)}),
                         to_nanoseconds(Seconds{2e-12 * 16 * model.parameters * part / devices}),
                         {static_cast<int64_t>(16 * model.parameters * part / devices)},
                         {static_cast<int64_t>(held * saved)},
                         {static_cast<int64_t>(held * transient)},
                         id};
    };
    return std::vector<StageOption>{option(0, 30 * length, 8, 0),
                                    option(0.95, 2 * length, 38, 1),
                                    option(1, 2, 8 + 30 * length, 2)};
  };
}

PipelineRequest request_of(const Case& model, double uneven) {
  PipelineRequest request;
  request.layers = model.layers;
  for (const SyntheticPool& pool : model.pools) {
    PipelinePool& p = request.pools.emplace_back();
    p.name = pool.name;
    p.devices = pool.devices;
    for (int size = 1; size <= pool.devices && size <= 64; size *= 2) p.sizes.push_back(size);
    p.memory = {static_cast<int64_t>(pool.memory_gib * 0.9 * (1 << 30))};
  }
  const LinkCurve near = constant_bandwidth({25e9}, {10'000});
  const LinkCurve far = constant_bandwidth({model.gbit / 8 * 1e9}, {200'000});
  for (size_t from = 0; from < model.pools.size(); ++from) {
    auto& row = request.links.emplace_back();
    for (size_t to = 0; to < model.pools.size(); ++to) row.push_back(from == to ? near : far);
  }
  std::mt19937_64 random(1);
  std::vector<double> share;
  double sum = 0;
  for (int l = 0; l < model.layers; ++l) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    share.push_back(1 + uneven * (2 * unit - 1));
    sum += share.back();
  }
  for (double& s : share) s /= sum;
  const Bytes cut{static_cast<int64_t>(2 * model.tokens * model.hidden)};
  request.microbatches = {{model.microbatches,
                           std::vector<CutBytes>(static_cast<size_t>(model.layers - 1), {cut, cut}),
                           options_of(model, share)}};
  return request;
}

void run(const Case& model, double uneven, double gap, bool show) {
  PipelineRequest request = request_of(model, uneven);
  request.gap = gap;
  const double wall = now(), cpu = cpu_now();
  const auto outcome = plan_pipeline(request);
  const double wall_s = now() - wall, cpu_s = cpu_now() - cpu;
  if (const auto* no = std::get_if<Infeasible>(&outcome)) {
    fmt::print("{{\"case\": \"{}\", \"infeasible\": \"{}\"}}\n", model.name, no->reason);
    return;
  }
  const auto& found = std::get<PipelinePlans>(outcome);
  const PipelinePlan& best = found.plans.front();
  fmt::print(
      "{{\"costs\": \"synthetic\", \"case\": \"{}\", \"layers\": {}, \"devices\": {}, \"pools\": "
      "{}, \"stages\": {}, \"predicted_s\": {:.6f}, \"gap\": {:.6f}, \"step_bound_s\": {:.6f}, "
      "\"searches\": {}, \"wall_s\": {:.3f}, \"cpu_s\": {:.3f}, \"peak_mib\": "
      "{}}}\n",
      model.name,
      model.layers,
      [&] {
        int sum = 0;
        for (const SyntheticPool& pool : model.pools) sum += pool.devices;
        return sum;
      }(),
      model.pools.size(),
      best.stages.size(),
      to_seconds(best.predicted).value,
      1 - found.lower_bound / best.predicted,
      to_seconds(found.step_bound).value,
      found.searches,
      wall_s,
      cpu_s,
      usage().ru_maxrss / 1024);
  if (!show) return;
  for (const PipelineStage& s : best.stages)
    fmt::print("  layers {} to {} on {} x {}, option {}, {} ms, {} of {} in flight\n",
               s.range.begin,
               s.range.end - 1,
               request.pools[static_cast<size_t>(s.range.pool)].name,
               s.range.devices,
               s.option.id,
               (s.option.forward + s.option.backward).value / 1'000'000,
               s.in_flight,
               s.room);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times of pipeline planning on synthetic costs");
  std::vector<std::string> names;
  double uneven = 0.03, gap = 0, gbit = 0, memory = 1;
  bool show = false;
  app.add_option("cases", names, "all if none is named");
  app.add_option("--uneven", uneven, "share by which layers differ at most");
  app.add_option("--gap", gap, "stop when no plan can be better by this share");
  app.add_option("--gbit", gbit, "between pools");
  app.add_option("--memory", memory, "share of the devices' memory");
  app.add_flag("--show", show, "print the stages");
  CLI11_PARSE(app, argc, argv);
  for (Case model : cases()) {
    if (!names.empty() && std::ranges::find(names, model.name) == names.end()) continue;
    if (gbit > 0) model.gbit = gbit;
    for (SyntheticPool& pool : model.pools) pool.memory_gib *= memory;
    run(model, uneven, gap, show);
  }
}
