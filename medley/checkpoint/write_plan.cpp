#include "medley/checkpoint/write_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/boxes/cells.h"

namespace medley {
namespace {

// A holder of a box: a stage of the value and a device of its mesh.
struct Holder {
  int stage, device;
  int number;  // the device among those of all stages
};

struct Piece {
  int value, box;
  int64_t bytes;
  const std::vector<Holder>* holders;
};

// Divides at the outermost factor with several elements, into pieces of at most `bytes` bytes each.
std::vector<Box> divide(const Box& box, int64_t bytes_of_one, int64_t bytes) {
  const int64_t count = std::max<int64_t>(1, (volume(box) * bytes_of_one + bytes - 1) / bytes);
  for (size_t f = 0; f < box.size(); ++f) {
    const int64_t size = box[f].size();
    if (size == 1) continue;
    std::vector<Box> pieces;
    const int64_t pieces_wanted = std::min(count, size);
    for (int64_t i = 0; i < pieces_wanted; ++i) {
      pieces.push_back(box);
      pieces.back()[f] = {box[f].begin + size * i / pieces_wanted,
                          box[f].begin + size * (i + 1) / pieces_wanted};
    }
    return pieces;
  }
  return {box};
}

class WritePlanner {
 public:
  WritePlanner(const std::vector<HeldValue>& values, const std::vector<int>& devices)
      : values_(values) {
    for (const int count : devices) {
      first_.push_back(num_devices_);
      num_devices_ += count;
    }
  }

  WritePlan run(int64_t least_bytes) {
    std::vector<Cells> cells;
    int64_t bytes = 0;
    for (const HeldValue& value : values_) {
      cells.push_back(cells_of(value));
      bytes += product_of(value.shape) * bytes_per_element(value.dtype);
    }
    const int64_t share = std::max(least_bytes, bytes / std::max(1, num_devices_));
    WritePlan write_plan;
    for (size_t v = 0; v < values_.size(); ++v)
      add(static_cast<int>(v), cells[v], share, write_plan);
    give(write_plan);
    return write_plan;
  }

 private:
  static Cells cells_of(const HeldValue& value) {
    std::vector<Layout> layouts;
    std::vector<std::string> places;
    for (const HoldingStage& each : value.stages) {
      layouts.push_back(each.layout);
      places.push_back(fmt::format("{} \"{}\" of stage {}", value.kind, value.name, each.stage));
    }
    return medley::cells_of(layouts, places);
  }

  void add(int v, const Cells& cells, int64_t share, WritePlan& write_plan) {
    const HeldValue& value = values_[at(v)];
    const int64_t bytes = bytes_per_element(value.dtype);
    // Uncut values are divided by rows.
    const bool is_whole = cells.cells.size() == 1;
    const FactorSizes& factors = is_whole ? value.shape : cells.factors;
    StoredValue stored{value.kind, value.name, value.dtype, value.shape, factors, {}, {}};
    for (const Cell& cell : cells.cells) {
      const std::vector<Holder>* holders = holders_of(v, cell);
      const Box all = is_whole ? whole_box(factors) : cell.box;
      for (const Box& box : divide(all, bytes, holders->size() > 1 ? share : kUndivided)) {
        pieces_.push_back({v, static_cast<int>(stored.boxes.size()), volume(box) * bytes, holders});
        stored.boxes.push_back(box);
      }
    }
    stored.files.resize(stored.boxes.size());
    write_plan.values.push_back(std::move(stored));
  }

  const std::vector<Holder>* holders_of(int v, const Cell& cell) {
    std::vector<Holder>& found = holders_.emplace_back();
    const HeldValue& value = values_[at(v)];
    for (size_t h = 0; h < cell.boxes.size(); ++h) {
      if (cell.boxes[h] == kNoBox) continue;
      const HoldingStage& stage = value.stages[h];
      for (size_t d = 0; d < stage.layout.box_of.size(); ++d)
        if (stage.layout.box_of[d] == cell.boxes[h])
          found.push_back({static_cast<int>(h),
                           static_cast<int>(d),
                           first_[at(stage.stage)] + static_cast<int>(d)});
    }
    if (found.empty())
      throw Error(Blame::kCaller,
                  fmt::format("{} \"{}\": found nobody who has {}, expected a device",
                              value.kind,
                              value.name,
                              to_string(cell.box)));
    return &found;
  }

  // Gives boxes with few holders first, then the largest, each to the holder with least so far.
  void give(WritePlan& write_plan) {
    std::vector<size_t> order(pieces_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t i) {
      return std::pair(pieces_[i].holders->size(), -pieces_[i].bytes);
    });
    std::vector<int64_t> load(at(num_devices_));
    std::map<int, std::vector<BoxWrite>> boxes;
    for (const size_t i : order) {
      const Piece& piece = pieces_[i];
      const Holder& best = *std::ranges::min_element(
          *piece.holders, {}, [&](const Holder& h) { return load[at(h.number)]; });
      load[at(best.number)] += piece.bytes;
      boxes[best.number].push_back({piece.value, piece.box, best.stage, best.device});
    }
    for (auto& [device, mine] : boxes) {
      std::ranges::sort(mine, {}, [](const BoxWrite& b) { return std::pair(b.value, b.box); });
      for (const BoxWrite& each : mine)
        write_plan.values[at(each.value)].files[at(each.box)] =
            static_cast<int>(write_plan.writers.size());
      write_plan.writers.push_back(device);
      write_plan.boxes.push_back(std::move(mine));
    }
  }

  static constexpr int64_t kUndivided = int64_t{1} << 60;
  const std::vector<HeldValue>& values_;
  std::vector<int> first_;  // [stage] its first device's number
  int num_devices_ = 0;
  std::vector<Piece> pieces_;
  std::deque<std::vector<Holder>> holders_;
};

}  // namespace

WritePlan plan_writes(const std::vector<HeldValue>& values,
                      const std::vector<int>& devices,
                      int64_t least_bytes) {
  return WritePlanner(values, devices).run(least_bytes);
}

namespace {

ProgramWritePlan plan_writes(const Program& program, std::vector<HeldValue> held) {
  ProgramWritePlan planned{std::move(held), {}, {}};
  for (const LoweredStage& stage : program.stages)
    planned.devices.push_back(static_cast<int>(stage.devices.size()));
  planned.write_plan = plan_writes(planned.held, planned.devices);
  return planned;
}

}  // namespace

ProgramWritePlan plan_writes(const Program& program) {
  return plan_writes(program, held_values(program));
}

ProgramWritePlan plan_writes(const Program& program,
                             const ValueNames& among,
                             const std::string& prefix) {
  std::vector<HeldValue> held = held_values(program);
  std::erase_if(held, [&](const HeldValue& value) {
    return !among.contains({value.kind, value.name});
  });
  ProgramWritePlan planned = plan_writes(program, std::move(held));
  for (StoredValue& value : planned.write_plan.values)
    value.name = stored_name(value.kind, value.name, prefix);
  return planned;
}

std::vector<int64_t> held_bytes(const ProgramWritePlan& planned) {
  std::vector<int64_t> bytes(
      at(std::accumulate(planned.devices.begin(), planned.devices.end(), 0)));
  for (size_t w = 0; w < planned.write_plan.writers.size(); ++w) {
    int last = -1;  // boxes are by value
    for (const BoxWrite& each : planned.write_plan.boxes[w]) {
      if (each.value == std::exchange(last, each.value)) continue;
      const HeldValue& value = planned.held[at(each.value)];
      const Layout& layout = value.stages[at(each.holder)].layout;
      bytes[at(planned.write_plan.writers[w])] +=
          volume(layout.boxes[at(layout.box_of[at(each.device)])]) * bytes_per_element(value.dtype);
    }
  }
  return bytes;
}

}  // namespace medley
