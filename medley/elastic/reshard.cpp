#include "medley/elastic/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "medley/base/at.h"
#include "medley/boxes/cells.h"
#include "medley/elastic/shards.h"
#include "medley/graph/dtype.h"

namespace medley {
namespace {

// A cell of a value that a device wants, and its holders.
struct Need {
  int value = 0;
  size_t cell = 0;
  int to = 0;
  int64_t bytes = 0;
  Runs in_to;
  std::vector<Shard> holders;
  int chosen = -1;  // index into holders
};

// Assigns the largest cell first, each to the giver that is done with it first.
class SourceChooser {
 public:
  explicit SourceChooser(const ByteTime& byte_time) : byte_time_(byte_time) {}

  void choose_all(std::vector<Need>& needs) {
    std::vector<Need*> open;
    for (Need& need : needs) {
      const auto own = std::ranges::find(need.holders, need.to, &Shard::device);
      if (own != need.holders.end()) need.chosen = static_cast<int>(own - need.holders.begin());
      if (need.chosen < 0) open.push_back(&need);
    }
    std::ranges::stable_sort(open, std::greater<>(), [](const Need* need) { return need->bytes; });
    for (Need* need : open) choose(*need);
  }

 private:
  void choose(Need& need) {
    // Among givers that end together, the one that has sent least.
    std::pair<double, double> best;
    for (size_t h = 0; h < need.holders.size(); ++h) {
      const int from = need.holders[h].device;
      const double takes = static_cast<double>(need.bytes) * byte_time_(from, need.to);
      const std::pair end(std::max(sends_[from], receives_[need.to]) + takes, sends_[from]);
      if (need.chosen >= 0 && end >= best) continue;
      best = end;
      need.chosen = static_cast<int>(h);
    }
    const int from = need.holders[at(need.chosen)].device;
    const double takes = static_cast<double>(need.bytes) * byte_time_(from, need.to);
    sends_[from] += takes;
    receives_[need.to] += takes;
  }

  const ByteTime& byte_time_;
  std::map<int, double> sends_, receives_;  // by device
};

// Replicas of a value on devices, each box on its own.
struct Kept {
  Layout layout;
  std::vector<int> devices, replicas;  // as in Laid
};

using Name = std::pair<std::string, std::string>;  // kind and name

class Search {
 public:
  Search(const std::vector<Holders>& before, const Program& after, const std::set<Name>& without)
      : after_(after) {
    for (const Holders& holders : before) {
      before_.push_back({&holders, {}, {}});
      if (holders.program)
        for (HeldValue& value : held_values(*holders.program))
          before_.back().values.emplace(std::pair(value.kind, value.name), std::move(value));
      if (holders.replicas) keep_for_others(before_.back());
    }
    moves_.values = held_values(after);
    std::erase_if(moves_.values, [&](const HeldValue& value) {
      return without.contains({value.kind, value.name});
    });
  }

  ReshardPlan run(const ByteTime& byte_time) {
    for (size_t v = 0; v < moves_.values.size(); ++v) look_for(static_cast<int>(v));
    SourceChooser(byte_time).choose_all(needs_);
    for (Need& need : needs_) {
      const Shard& from = need.holders[at(need.chosen)];
      moves_.moves.push_back({need.value,
                              from.device,
                              need.to,
                              from.replica,
                              in_from(need, from),
                              std::move(need.in_to)});
    }
    return std::move(moves_);
  }

 private:
  struct Held {
    const Holders* holders;
    std::map<Name, HeldValue> values;
    std::map<Name, Kept> kept;
  };

  static void keep_for_others(Held& held) {
    const StateReplicas& replicas = *held.holders->replicas;
    for (size_t h = 0; h < replicas.replicas.size(); ++h) {
      const StateReplica& replica = replicas.replicas[h];
      const HeldValue& value = replicas.values[at(replica.value)];
      Kept& kept = held.kept[{value.kind, value.name}];
      const bool counts = std::ranges::count(held.holders->devices, replica.to) > 0;
      kept.layout.factors = replica.factors;
      kept.layout.box_of.push_back(static_cast<int>(kept.layout.boxes.size()));
      kept.layout.boxes.push_back(replica.box);
      kept.devices.push_back(counts ? replica.to : -1);
      kept.replicas.push_back(static_cast<int>(h));
    }
  }

  std::vector<Laid> there(const HeldValue& value) const {
    std::vector<Laid> there;
    for (const Held& held : before_)
      if (const auto found = held.values.find({value.kind, value.name}); found != held.values.end())
        for (Laid& laid : laid_out(found->second, *held.holders->program, &held.holders->devices))
          there.push_back(std::move(laid));
    for (const Held& held : before_)
      if (const auto found = held.kept.find({value.kind, value.name}); found != held.kept.end())
        there.push_back({&found->second.layout, found->second.devices, found->second.replicas});
    return there;
  }

  void look_for(int v) {
    const HeldValue& value = moves_.values[at(v)];
    if (std::ranges::count(value.shape, 0) > 0) return;
    const std::vector<Laid> there = this->there(value), wanted = laid_out(value, after_);
    std::vector<Layout> layouts = layouts_of(there);
    std::ranges::copy(layouts_of(wanted), std::back_inserter(layouts));
    cells_.push_back(cells_of(layouts));
    cells_of_[v] = cells_.size() - 1;
    const Cells& cells = cells_.back();
    const int64_t bytes = bytes_per_element(value.dtype);
    for (size_t c = 0; c < cells.cells.size(); ++c) {
      const Cell& cell = cells.cells[c];
      const std::vector<Shard> takers = shards_of(wanted, cell, there.size());
      if (takers.empty()) continue;
      const std::vector<Shard> holders = shards_of(there, cell);
      if (holders.empty()) {
        if (is_loss_scale(value.kind, value.name)) continue;
        moves_.lost.push_back(
            fmt::format("{} \"{}\": {}", value.kind, value.name, to_string(cell.box)));
        continue;
      }
      for (const Shard& taker : takers)
        needs_.push_back({v,
                          c,
                          taker.device,
                          volume(cell.box) * bytes,
                          runs_in(taker, cells, cell, bytes),
                          holders});
    }
  }

  Runs in_from(const Need& need, const Shard& from) const {
    const Cells& cells = cells_[cells_of_.at(need.value)];
    return runs_in(from,
                   cells,
                   cells.cells[need.cell],
                   bytes_per_element(moves_.values[at(need.value)].dtype));
  }

  const Program& after_;
  std::vector<Held> before_;
  std::vector<Cells> cells_;
  std::map<int, size_t> cells_of_;  // by value
  std::vector<Need> needs_;
  ReshardPlan moves_;
};

}  // namespace

ReshardPlan plan_reshard(const std::vector<Holders>& before,
                         const Program& after,
                         const ByteTime& byte_time,
                         const std::set<Name>& without) {
  return Search(before, after, without).run(byte_time);
}

}  // namespace medley
