#include "planner/layer_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "medley/schedule/h1f1b.h"

namespace medley {
namespace {

constexpr int64_t kNever = INT64_MAX / 4;

// A possible stage of a chain: its times, and its device types.
struct Choice {
  StageOption costs;
  std::vector<LayerMesh> meshes;
  int64_t room = 0;
  int64_t time() const { return (costs.forward + costs.backward).value; }
};

struct Setting {
  const TableCosts& costs;
  int64_t rows;  // micro-batch rows
  int microbatches;
  int replicas;
};

int64_t room_of(const TableCosts& costs, const StageOption& stage, int pool) {
  const Bytes left = costs.memory(pool) - stage.persistent - stage.transient;
  if (left.value < 0) return 0;
  return stage.saved.value > 0 ? left.value / stage.saved.value : kNever;
}

// Returns the boundary between two stages, over the nearest of their device types.
BoundaryTimes boundary(const Setting& setting, const Choice& from, const Choice& to, int layer) {
  const Bytes bytes = setting.costs.cut(layer, setting.rows);
  BoundaryTimes best{{kNever}, {kNever}, {}};
  for (const LayerMesh& a : from.meshes)
    for (const LayerMesh& b : to.meshes) {
      const auto up = setting.costs.link(a.pool, a.devices(), b.pool, b.devices());
      const auto down = setting.costs.link(b.pool, b.devices(), a.pool, a.devices());
      if (up && down)
        best = std::min(best,
                        {occupied(*up, bytes), occupied(*down, bytes), up->latency},
                        [](const BoundaryTimes& x, const BoundaryTimes& y) {
                          return x.forward + x.backward < y.forward + y.backward;
                        });
    }
  return best;
}

// Returns a lower bound of any schedule: a stage works for all micro-batches, between the first
// one's way down to it and the last one's way up, and then stages update.
int64_t lower_bound(const std::vector<Choice>& chain, int microbatches) {
  int64_t bound = 0, on = 0, back = 0;
  for (const Choice& stage : chain) {
    const int64_t end = on + microbatches * stage.time();
    bound = std::max(
        {bound, end + stage.costs.update.value, end + back + chain.front().costs.update.value});
    on += stage.costs.forward.value;
    back += stage.costs.backward.value;
  }
  return bound;
}

std::string text(const Setting& setting,
                 const std::vector<Choice>& chain,
                 const std::vector<int>& ends) {
  std::string out =
      fmt::format("{} micro-batches, {} replicas:", setting.microbatches, setting.replicas);
  int begin = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    out += fmt::format(" {}-{}", begin, ends[i] - 1);
    for (const LayerMesh& mesh : chain[i].meshes)
      out += fmt::format(" {}x{} {}",
                         mesh.replicas,
                         mesh.tensor_parallel,
                         setting.costs.cluster().pools[static_cast<size_t>(mesh.pool)].name);
    out += i + 1 < chain.size() ? " |" : "";
    begin = ends[i];
  }
  return out;
}

void judge(const Setting& setting,
           const std::vector<Choice>& chain,
           const std::vector<int>& ends,
           PeerResult& best) {
  ++best.seen;
  if (lower_bound(chain, setting.microbatches) >= best.step.value) return;
  ScheduleRequest request;
  MicrobatchTimes times;
  for (size_t i = 0; i < chain.size(); ++i) {
    times.stages.push_back({chain[i].costs.forward, chain[i].costs.backward});
    request.max_in_flight.push_back(
        static_cast<int>(std::min<int64_t>(chain[i].room, setting.microbatches)));
    request.pools.push_back(static_cast<int>(i));
    if (i == 0) continue;
    times.boundaries.push_back(boundary(setting, chain[i - 1], chain[i], ends[i - 1] - 1));
    if (times.boundaries.back().forward.value >= kNever) return;
  }
  ++best.timed;
  request.times = equal_microbatches(std::move(times), setting.microbatches);
  const std::vector<int> counts = h1f1b(request).counts;
  const Timing timing = time_calls(order_calls(counts, setting.microbatches), request.times);
  Nanoseconds step;
  for (size_t i = 0; i < chain.size(); ++i)
    step = std::max(step, timing.calls[i].back().end + chain[i].costs.update);
  if (step >= best.step) return;
  best.step = step;
  best.what = text(setting, chain, ends);
}

std::vector<int> devices_of_pools(const TableCosts& costs) {
  std::vector<int> devices;
  for (int p = 0; p < costs.pools(); ++p) devices.push_back(costs.devices(p));
  return devices;
}

// Calls `use` for all ways to cut the batch.
template <typename Use>
void for_settings(const TableCosts& costs, int64_t global_batch, const Use& use) {
  const int most = std::ranges::max(devices_of_pools(costs));
  for (int replicas = most * costs.pools(); replicas >= 1; --replicas)
    for (int64_t own = 1; own * replicas <= global_batch; ++own) {
      if (global_batch % (own * replicas) != 0) continue;
      bool measured = false;
      for (int p = 0; p < costs.pools(); ++p)
        for (const int degree : costs.degrees(p))
          measured = measured || costs.stage(0, 1, {p, 1, degree}, own);
      if (!measured) continue;
      const int64_t count = global_batch / (own * replicas);
      use(Setting{costs, own * replicas, static_cast<int>(count), replicas});
    }
}

class EqualReplicas {
 public:
  EqualReplicas(const Setting& setting, int most_stages, PeerResult& best)
      : setting_(setting),
        most_stages_(most_stages),
        best_(best),
        left_(devices_of_pools(setting.costs)) {
    fastest_.assign(static_cast<size_t>(setting.costs.layers()) + 1, 0);
  }
  void run() {
    // The fastest stage of a replica for each layer.
    for (int layer = setting_.costs.layers(); layer-- > 0;) {
      int64_t least = kNever;
      for (int p = 0; p < setting_.costs.pools(); ++p)
        for (const int degree : setting_.costs.degrees(p))
          if (const auto stage = setting_.costs.stage(
                  layer, layer + 1, {p, setting_.replicas, degree}, setting_.rows))
            least = std::min(least, (stage->forward + stage->backward).value);
      if (least == kNever) return;
      fastest_[static_cast<size_t>(layer)] = fastest_[static_cast<size_t>(layer) + 1] + least;
    }
    extend(0);
  }

 private:
  void extend(int begin) {
    if (begin == setting_.costs.layers()) return judge(setting_, chain_, ends_, best_);
    const int more = most_stages_ - static_cast<int>(chain_.size());
    if (more == 0) return;
    // A bound: the longest stage if the rest is divided ideally.
    if (fastest_[static_cast<size_t>(begin)] / more * setting_.microbatches >= best_.step.value)
      return;
    for (int p = 0; p < setting_.costs.pools(); ++p)
      for (const int degree : setting_.costs.degrees(p)) {
        const LayerMesh mesh{p, setting_.replicas, degree};
        if (mesh.devices() > left_[static_cast<size_t>(p)]) continue;
        left_[static_cast<size_t>(p)] -= mesh.devices();
        for (int end = more == 1 ? setting_.costs.layers() : begin + 1;
             end <= setting_.costs.layers();
             ++end)
          if (!with_stage(begin, end, mesh)) break;
        left_[static_cast<size_t>(p)] += mesh.devices();
      }
  }

  // Returns false if no longer stage needs to be tried.
  bool with_stage(int begin, int end, const LayerMesh& mesh) {
    const auto stage = setting_.costs.stage(begin, end, mesh, setting_.rows);
    if (!stage) return false;
    const int64_t room = room_of(setting_.costs, *stage, mesh.pool);
    if (room < 1) return false;
    chain_.push_back({*stage, {mesh}, room});
    ends_.push_back(end);
    const bool may = lower_bound(chain_, setting_.microbatches) < best_.step.value;
    if (may) extend(end);
    chain_.pop_back();
    ends_.pop_back();
    return may;
  }

  const Setting& setting_;
  const int most_stages_;
  PeerResult& best_;
  std::vector<int> left_;
  std::vector<int64_t> fastest_;
  std::vector<Choice> chain_;
  std::vector<int> ends_;
};

class SailorRules {
 public:
  SailorRules(const Setting& setting, int stages, PeerResult& best)
      : setting_(setting), stages_(stages), best_(best), left_(devices_of_pools(setting.costs)) {
    for (int s = 1; s <= stages; ++s) ends_.push_back(setting.costs.layers() * s / stages);
  }
  void run() { extend(0); }

 private:
  int begin(int s) const { return s == 0 ? 0 : ends_[static_cast<size_t>(s) - 1]; }

  // Returns the least degree that fits with the micro-batches of 1F1B in flight; 0: none.
  int least_degree(int s, int pool) const {
    const int in_flight = std::min(setting_.microbatches, stages_ - s);
    for (const int degree : setting_.costs.degrees(pool))
      if (const auto stage = stage_on(s, {pool, setting_.replicas, degree}))
        if (room_of(setting_.costs, *stage, pool) >= in_flight) return degree;
    return 0;
  }
  std::optional<StageOption> stage_on(int s, const LayerMesh& mesh) const {
    return setting_.costs.stage(begin(s), ends_[static_cast<size_t>(s)], mesh, setting_.rows);
  }

  void extend(int s) {
    if (s == stages_) return judge(setting_, chain_, ends_, best_);
    for (unsigned kinds = 1; kinds < 1U << setting_.costs.pools(); ++kinds) with_kinds(s, kinds);
  }

  // Adds a stage whose replicas have these device types: as many of the cluster's later types as
  // available, and the rest of the earlier ones.
  void with_kinds(int s, unsigned kinds) {
    Choice choice;
    const std::vector<int> before = left_;
    int missing = setting_.replicas;
    for (int p = setting_.costs.pools(); p-- > 0;) {
      if (!(kinds >> p & 1)) continue;
      const int degree = least_degree(s, p);
      const int others = __builtin_popcount(kinds & ((1U << p) - 1));  // one replica each
      const int replicas =
          degree == 0 ? 0 : std::min(left_[static_cast<size_t>(p)] / degree, missing - others);
      if (replicas < 1) return void(left_ = before);
      const LayerMesh all{p, setting_.replicas, degree};
      add_kind(choice, all, *stage_on(s, all));
      choice.meshes.back().replicas = replicas;
      left_[static_cast<size_t>(p)] -= replicas * degree;
      missing -= replicas;
    }
    if (missing == 0) {
      chain_.push_back(std::move(choice));
      if (lower_bound(chain_, setting_.microbatches) < best_.step.value) extend(s + 1);
      chain_.pop_back();
    }
    left_ = before;
  }

  void add_kind(Choice& choice, const LayerMesh& mesh, const StageOption& stage) const {
    const int64_t room = room_of(setting_.costs, stage, mesh.pool);
    if (choice.meshes.empty()) {
      choice.costs = stage;
      choice.room = room;
    } else {
      choice.costs.forward = std::max(choice.costs.forward, stage.forward);
      choice.costs.backward = std::max(choice.costs.backward, stage.backward);
      choice.costs.update = std::min(choice.costs.update, stage.update);
      choice.room = std::min(choice.room, room);
    }
    choice.meshes.push_back(mesh);
  }

  const Setting& setting_;
  const int stages_;
  PeerResult& best_;
  std::vector<int> left_;
  std::vector<Choice> chain_;
  std::vector<int> ends_;
};

}  // namespace

PeerResult equal_replicas(const TableCosts& costs, int64_t global_batch, int most_stages) {
  PeerResult best;
  for_settings(costs, global_batch, [&](const Setting& setting) {
    EqualReplicas(setting, most_stages, best).run();
  });
  return best;
}

PeerResult sailor_rules(const TableCosts& costs, int64_t global_batch, int most_stages) {
  PeerResult best;
  for_settings(costs, global_batch, [&](const Setting& setting) {
    for (int stages = 1; stages <= std::min(most_stages, costs.layers()); ++stages)
      SailorRules(setting, stages, best).run();
  });
  return best;
}

}  // namespace medley
