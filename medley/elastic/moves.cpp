#include "medley/elastic/moves.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "medley/base/at.h"
#include "medley/boxes/cells.h"
#include "medley/graph/dtype.h"

namespace medley {
namespace {

// Somebody's shard of a value.
struct Shard {
  int device = 0;
  const Layout* layout = nullptr;
  int box = kNoBox;
};

// A cell of a value that a device wants, and who has it.
struct Need {
  int value = 0;
  size_t cell = 0;
  int to = 0;
  int64_t bytes = 0;
  Runs in_to;
  std::vector<Shard> holders;
  int chosen = -1;  // of holders
};

// A layout of one value in one stage of a program, with the devices that count.
struct Laid {
  const Layout* layout = nullptr;
  std::vector<int> devices;  // of the cluster; -1: it is gone
};

std::vector<Laid> laid_out(const HeldValue& value, const Program& program, const Holders* holders) {
  std::vector<Laid> all;
  for (const HoldingStage& stage : value.stages) {
    Laid laid{&stage.layout, program.stages[at(stage.stage)].devices};
    if (holders)
      for (int& device : laid.devices)
        if (std::ranges::find(holders->devices, device) == holders->devices.end()) device = -1;
    all.push_back(std::move(laid));
  }
  return all;
}

std::vector<Shard> shards_of(const std::vector<Laid>& laid, const Cell& cell, size_t first) {
  std::vector<Shard> shards;
  for (size_t l = 0; l < laid.size(); ++l) {
    const int box = cell.boxes[first + l];
    if (box == kNoBox) continue;
    for (size_t d = 0; d < laid[l].devices.size(); ++d)
      if (laid[l].devices[d] >= 0 && laid[l].layout->box_of[d] == box)
        shards.push_back({laid[l].devices[d], laid[l].layout, box});
  }
  return shards;
}

Runs runs_in(const Shard& shard, const Cells& cells, const Cell& cell, int64_t bytes) {
  return runs_in(
      shard.layout->factors, shard.layout->boxes[at(shard.box)], cells.factors, cell.box, bytes);
}

// Who has less to do gives: the largest first, each to whoever is done first with it.
class Dealer {
 public:
  explicit Dealer(const ByteTime& byte_time) : byte_time_(byte_time) {}

  void deal(std::vector<Need>& needs) {
    std::vector<Need*> open;
    for (Need& need : needs) {
      for (size_t h = 0; h < need.holders.size(); ++h)
        if (need.holders[h].device == need.to) need.chosen = static_cast<int>(h);
      if (need.chosen < 0) open.push_back(&need);
    }
    std::ranges::stable_sort(open, std::greater<>(), [](const Need* need) { return need->bytes; });
    for (Need* need : open) choose(*need);
  }

 private:
  void choose(Need& need) {
    // Of those with whom it ends at the same time, whoever has sent least.
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

class Search {
 public:
  Search(const std::vector<Holders>& before, const Program& after) : after_(after) {
    for (const Holders& holders : before) {
      before_.push_back({&holders, {}});
      for (HeldValue& value : held_values(*holders.program))
        before_.back().values.emplace(std::pair(value.kind, value.name), std::move(value));
    }
    moves_.values = held_values(after);
  }

  Moves run(const ByteTime& byte_time) {
    for (size_t v = 0; v < moves_.values.size(); ++v) look_for(static_cast<int>(v));
    Dealer(byte_time).deal(needs_);
    for (Need& need : needs_) {
      const Shard& from = need.holders[at(need.chosen)];
      moves_.moves.push_back(
          {need.value, from.device, need.to, in_from(need, from), std::move(need.in_to)});
    }
    return std::move(moves_);
  }

 private:
  struct Held {
    const Holders* holders;
    std::map<std::pair<std::string, std::string>, HeldValue> values;
  };

  void look_for(int v) {
    const HeldValue& value = moves_.values[at(v)];
    if (std::ranges::count(value.shape, 0) > 0) return;
    std::vector<Laid> there, wanted = laid_out(value, after_, nullptr);
    for (const Held& held : before_)
      if (const auto found = held.values.find({value.kind, value.name}); found != held.values.end())
        for (Laid& laid : laid_out(found->second, *held.holders->program, held.holders))
          there.push_back(std::move(laid));
    std::vector<Layout> layouts;
    for (const auto* each : {&there, &wanted})
      for (const Laid& laid : *each) layouts.push_back(*laid.layout);
    cells_.push_back(cells_of(layouts));
    cells_of_[v] = cells_.size() - 1;
    const Cells& cells = cells_.back();
    const int64_t bytes = bytes_per_element(value.dtype);
    for (size_t c = 0; c < cells.cells.size(); ++c) {
      const Cell& cell = cells.cells[c];
      const std::vector<Shard> takers = shards_of(wanted, cell, there.size());
      if (takers.empty()) continue;
      const std::vector<Shard> holders = shards_of(there, cell, 0);
      if (holders.empty()) {
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
  Moves moves_;
};

}  // namespace

Moves moves_between(const std::vector<Holders>& before,
                    const Program& after,
                    const ByteTime& byte_time) {
  return Search(before, after).run(byte_time);
}

}  // namespace medley
