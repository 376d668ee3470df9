#include "medley/lower/gradient_syncs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "medley/base/at.h"
#include "medley/lower/owned_shares.h"
#include "medley/program/calls.h"

namespace medley {
namespace {

// Smaller tensors are summed whole inside a mesh: cutting them saves less than a message costs.
constexpr int64_t kCutElements = 1 << 14;

using End = std::optional<StageSync::End>;

// One stage's tensor of a parameter.
struct Holder {
  size_t stage = 0;
  ValueId value = kNone;
  End gives, takes;
};
using Holders = std::vector<Holder>;
using HoldersByName = std::map<std::string, Holders>;
using StageSyncs = std::vector<std::vector<StageSync>>;  // [stage]

// A stage's layouts of values during the sync.
class Layouts {
 public:
  explicit Layouts(const DecidedStage& stage)
      : stage_(stage), symbols_(stage.completed.assignment.parts, stage.mesh) {}

  // Returns the update's placement, or the stage's, or an even cut of the first long enough factor
  // that is otherwise uncut.
  Placement on_the_way(ValueId value, const Placement& stored) const {
    const Assignment& assignment = stage_.completed.assignment;
    const Placement& own = assignment.placements[at(value)];
    const auto even = static_cast<int>(std::ranges::find(assignment.part_names, kEven) -
                                       assignment.part_names.begin());
    const FactorSizes sizes = factors(value);
    Placement placement = stored;
    std::vector<bool> is_cut(sizes.size());
    for (const Placement* each : {&own, &stored})
      for (size_t axis = 0; axis < each->size(); ++axis)
        if ((*each)[axis].holding == Holding::kSharded) is_cut[at((*each)[axis].position)] = true;
    const bool is_large = product_of(sizes) >= kCutElements;
    for (size_t axis = 0; axis < placement.size(); ++axis) {
      if (placement[axis].holding == Holding::kSharded || stage_.mesh[axis] == 1) continue;
      if (own[axis].holding == Holding::kSharded) {
        placement[axis] = own[axis];
        continue;
      }
      for (size_t f = 0; is_large && f < sizes.size(); ++f) {
        if (is_cut[f] || sizes[f] < stage_.mesh[axis]) continue;
        is_cut[f] = true;
        placement[axis] = sharded(static_cast<int>(f), even);
        break;
      }
    }
    return placement;
  }

  Layout layout(ValueId value, const StageSync::End& end) {
    const auto& [placement, share] = end;
    const std::vector<Size> fulls = full_sizes(value);
    std::vector<std::pair<Size, Size>> cuts;  // [factor] offset, length
    for (size_t f = 0; f < fulls.size(); ++f) {
      const int position = static_cast<int>(f);
      if (share && share->position == position)
        cuts.emplace_back(symbols_.begin_within(placement, position, fulls[f], share->interval),
                          symbols_.length_within(placement, position, fulls[f], share->interval));
      else
        cuts.emplace_back(symbols_.offset(placement, position, fulls[f]),
                          symbols_.length(placement, position, fulls[f]));
    }
    std::vector<Box> boxes;  // [device]
    for (const std::vector<int64_t>& table : tables()) {
      Box& box = boxes.emplace_back();
      for (const auto& [offset, length] : cuts) {
        const int64_t begin = evaluate(offset, table);
        box.push_back({begin, begin + evaluate(length, table)});
      }
    }
    return layout_of(factors(value), boxes);
  }

 private:
  std::vector<Size> full_sizes(ValueId value) const {
    std::vector<Size> sizes;
    for (ExtentId extent : flat_factors(*stage_.completed.factors, value))
      sizes.push_back(stage_.completed.factors->extent_sizes[at(extent)]);
    return sizes;
  }
  FactorSizes factors(ValueId value) const {
    return constant_factors(*stage_.completed.factors, value);
  }
  // Parameters have no rows, so any micro-batch works.
  std::vector<std::vector<int64_t>> tables() const {
    const Microbatch& first = stage_.microbatches[0];
    return symbols_.tables(first, 0, 0, first.rows);
  }

  const DecidedStage& stage_;
  SymbolTable symbols_;
};

// Buckets of parameters with the same givers and takers.
class GradientSyncs {
 public:
  GradientSyncs(const std::vector<DecidedStage>& stages, GradientSync::Of of, int64_t bucket_bytes)
      : stages_(stages), of_(of), bucket_bytes_(bucket_bytes), all_(stages.size()) {
    for (const DecidedStage& stage : stages) layouts_.emplace_back(stage);
  }

  void add(const std::string& parameter, const Holders& holders) {
    std::vector<std::tuple<size_t, bool, bool>> members;
    for (const auto& [stage, value, gives, takes] : holders)
      members.emplace_back(stage, gives.has_value(), takes.has_value());
    const TensorType& type =
        type_of(stages_[holders[0].stage].completed.prepared->graph, holders[0].value);
    const int64_t bytes = num_bytes(type, {});
    if (members != bucket_.members || type.dtype != bucket_.dtype ||
        bucket_.bytes + bytes > bucket_bytes_)
      finish();
    bucket_.members = members;
    bucket_.dtype = type.dtype;
    bucket_.bytes += bytes;
    bucket_.parameters.emplace_back(parameter, holders);
  }

  StageSyncs run() {
    finish();
    return std::move(all_);
  }

 private:
  struct Bucket {
    std::vector<std::tuple<size_t, bool, bool>> members;  // stage, whether it gives and takes
    DType dtype = DType::kF32;
    int64_t bytes = 0;
    std::vector<std::pair<std::string, Holders>> parameters;
  };

  void finish() {
    const Bucket bucket = std::exchange(bucket_, {});
    if (bucket.parameters.empty()) return;
    StageSync sync;
    sync.name = fmt::format("sync {} from {}",
                            of_ == GradientSync::Of::kGradients ? "gradients" : "new values",
                            bucket.parameters[0].first);
    std::map<size_t, int> first_member;  // [stage]
    for (const auto& [stage, gives, takes] : bucket.members) {
      first_member[stage] = static_cast<int>(sync.devices.size());
      const std::vector<int>& devices = stages_[stage].devices;
      sync.devices.insert(sync.devices.end(), devices.begin(), devices.end());
    }
    GradientSync cells;
    cells.members.resize(sync.devices.size());
    cells.of = of_;
    std::map<size_t, StageSync> own;
    for (size_t t = 0; t < bucket.parameters.size(); ++t) {
      const auto& [parameter, holders] = bucket.parameters[t];
      std::vector<SyncHolder> synced;
      for (const Holder& holder : holders) {
        const int first = first_member.at(holder.stage);
        own[holder.stage].tensors.push_back({parameter, holder.gives, holder.takes});
        add_ends(parameter, holder, first, synced);
        for (size_t d = 0; d < stages_[holder.stage].devices.size(); ++d) {
          SyncMember& member = cells.members[at(first) + d];
          if (holder.gives) member.inputs.push_back(static_cast<int>(t));
          if (holder.takes) member.outputs.push_back(static_cast<int>(t));
        }
      }
      cells.tensors.push_back(tensor(std::move(synced)));
    }
    sync.cells = std::make_shared<const GradientSync>(std::move(cells));
    for (auto& [stage, each] : own) {
      sync.tensors = std::move(each.tensors);
      all_[stage].push_back(sync);
    }
  }

  // Adds holders: one if the stage gives and takes in the same layout, else two.
  void add_ends(const std::string& parameter,
                const Holder& holder,
                int first_member,
                std::vector<SyncHolder>& all) {
    const auto add = [&](const StageSync::End& end, bool gives, bool takes) {
      all.push_back({layouts_[holder.stage].layout(holder.value, end),
                     first_member,
                     gives,
                     takes,
                     parameter,
                     !end.share});
    };
    if (holder.gives && holder.takes && *holder.gives == *holder.takes)
      return add(*holder.gives, true, true);
    if (holder.gives) add(*holder.gives, true, false);
    if (holder.takes) add(*holder.takes, false, true);
  }

  // Returns a gradient sync's tensor, shared by repeated layers, whose layouts are equal.
  std::shared_ptr<const SyncTensor> tensor(std::vector<SyncHolder> holders) {
    for (const auto& [others, cells] : known_)
      if (std::ranges::equal(others, holders, are_equal)) return cells;
    auto cells = std::make_shared<const SyncTensor>(sync_tensor(holders));
    known_.emplace_back(std::move(holders), cells);
    return cells;
  }

  // Compares all but their names.
  static bool are_equal(const SyncHolder& a, const SyncHolder& b) {
    return a.first_member == b.first_member && a.gives == b.gives && a.takes == b.takes &&
           a.whole == b.whole && a.layout == b.layout;
  }

  const std::vector<DecidedStage>& stages_;
  const GradientSync::Of of_;
  const int64_t bucket_bytes_;
  std::vector<Layouts> layouts_;  // [stage]
  StageSyncs all_;
  Bucket bucket_;
  std::vector<std::pair<std::vector<SyncHolder>, std::shared_ptr<const SyncTensor>>> known_;
};

End share_of(const OwnedShares& shares, const std::string& parameter, const Placement& placement) {
  const auto share = shares.find(parameter);
  return StageSync::End{placement,
                        share == shares.end() ? std::nullopt : std::optional(share->second)};
}

HoldersByName holders_of_gradients(const std::vector<DecidedStage>& stages,
                                   const std::vector<OwnedShares>& shares) {
  HoldersByName holders;
  for (size_t s = 0; s < stages.size(); ++s) {
    const Completed& completed = stages[s].completed;
    const Prepared& prepared = *completed.prepared;
    const Layouts layouts(stages[s]);
    for (size_t i = 0; i < prepared.graph.outputs.size(); ++i) {
      const auto& [kind, name, value] = prepared.graph.outputs[i];
      if (kind != OutputKind::kGradient) continue;
      const Placement& stored = completed.assignment.stored[i];
      const StageSync::End whole{layouts.on_the_way(value, stored)};
      Holder holder{s, value, {}, whole};
      if (!is_received_gradient(prepared.graph, value)) holder.gives = whole;
      if (prepared.updated.elsewhere.contains(name))
        holder.takes = std::nullopt;
      else if (prepared.updated.shares.contains(name))
        holder.takes = share_of(shares[s], name, stored);
      holders[name].push_back(std::move(holder));
    }
  }
  return holders;
}

HoldersByName holders_of_values(const std::vector<DecidedStage>& stages,
                                const std::vector<OwnedShares>& shares) {
  HoldersByName holders;
  for (size_t s = 0; s < stages.size(); ++s) {
    const Completed& completed = stages[s].completed;
    const Prepared& prepared = *completed.prepared;
    std::map<std::string, Placement> updates;
    for (size_t i = 0; i < prepared.graph.outputs.size(); ++i)
      if (prepared.graph.outputs[i].kind == OutputKind::kGradient)
        updates[prepared.graph.outputs[i].name] = completed.assignment.stored[i];
    for (const Input& input : prepared.graph.inputs) {
      const bool owns = prepared.updated.shares.contains(input.name);
      if (input.kind != InputKind::kParameter ||
          (!owns && !prepared.updated.elsewhere.contains(input.name)))
        continue;
      Holder holder{
          s, input.value, {}, StageSync::End{completed.assignment.placements[at(input.value)]}};
      if (owns) holder.gives = share_of(shares[s], input.name, updates.at(input.name));
      holders[input.name].push_back(std::move(holder));
    }
  }
  return holders;
}

// Returns null if no two stages store it.
const Holders* several(const HoldersByName& holders, const std::string& parameter) {
  const auto found = holders.find(parameter);
  return found != holders.end() && found->second.size() > 1 ? &found->second : nullptr;
}

StageSyncs sync_all(const HoldersByName& holders,
                    const std::vector<std::string>& parameters,
                    GradientSyncs syncs) {
  for (const std::string& parameter : parameters)
    if (const Holders* found = several(holders, parameter)) syncs.add(parameter, *found);
  return syncs.run();
}

// Consecutive parameters of the same stages.
struct HeldTogether {
  std::vector<size_t> stages;
  int64_t bytes = 0;  // smallest of the devices
  std::vector<std::string> parameters;
};

std::vector<HeldTogether> segments_of(const std::vector<DecidedStage>& stages,
                                      const HoldersByName& holders,
                                      const std::vector<std::string>& parameters) {
  std::vector<HeldTogether> segments;
  for (const std::string& parameter : parameters) {
    const Holders* found = several(holders, parameter);
    if (!found) continue;
    std::vector<size_t> members;
    size_t fewest = stages[found->front().stage].devices.size();
    for (const Holder& holder : *found) {
      members.push_back(holder.stage);
      fewest = std::min(fewest, stages[holder.stage].devices.size());
    }
    if (segments.empty() || segments.back().stages != members) segments.push_back({members, 0, {}});
    const Graph& graph = stages[members[0]].completed.prepared->graph;
    segments.back().bytes +=
        num_bytes(type_of(graph, found->front().value), {}) / static_cast<int64_t>(fewest);
    segments.back().parameters.push_back(parameter);
  }
  return segments;
}

// If cuts of pipelines differ, each segment shares a stage with the next one. Summed in order,
// every segment would wait for the one before:
//
//   one pipeline      |    a3     |    a2     |  a1  |     summed in order: 1 2 3 4 5
//   another one       |  b3  |     b2     |    b1    |     here:            2 4, then 1 3 5
//   segments          |  1   |  2 |   3   | 4 |  5   |
//
// They therefore alternate: from the end, each goes as late as its stages allow.
std::vector<std::string> in_turns(std::vector<HeldTogether> segments, size_t num_stages) {
  std::vector<int64_t> busy(num_stages);  // [stage] until the end
  std::vector<std::string> reversed;
  while (!segments.empty()) {
    const auto behind = [&](const HeldTogether& segment) {
      int64_t most = 0;
      for (const size_t stage : segment.stages) most = std::max(most, busy[stage]);
      return most;
    };
    const auto last =
        std::prev(std::ranges::min_element(segments.rbegin(), segments.rend(), {}, behind).base());
    const int64_t until = behind(*last) + last->bytes;
    for (const size_t stage : last->stages) busy[stage] = until;
    reversed.insert(reversed.end(), last->parameters.rbegin(), last->parameters.rend());
    segments.erase(last);
  }
  return {reversed.rbegin(), reversed.rend()};
}

// Returns parameters in the order in which their gradients are done in the whole graph.
std::vector<std::string> by_gradient(const Graph& graph) {
  std::vector<std::pair<OpId, std::string>> order;
  for (const Output& output : graph.outputs)
    if (output.kind == OutputKind::kGradient)
      order.emplace_back(graph.values[at(output.value)].producer, output.name);
  std::ranges::stable_sort(order, {}, [](const auto& each) { return each.first; });
  std::vector<std::string> names;
  for (auto& [op, name] : order) names.push_back(std::move(name));
  return names;
}

}  // namespace

void connect_gradient_syncs(const std::vector<DecidedStage>& stages,
                            const Plan& plan,
                            const Graph& whole,
                            int64_t bytes,
                            std::vector<Connections>& connections) {
  if (stages.size() == 1) return;
  const std::vector<OwnedShares> shares = divide_updates(stages, plan);
  const HoldersByName holders = holders_of_gradients(stages, shares);
  std::vector<std::string> order =
      in_turns(segments_of(stages, holders, by_gradient(whole)), stages.size());
  StageSyncs gradients =
      sync_all(holders, order, GradientSyncs(stages, GradientSync::Of::kGradients, bytes));
  std::ranges::reverse(order);
  StageSyncs values = sync_all(holders_of_values(stages, shares),
                               order,
                               GradientSyncs(stages, GradientSync::Of::kNewValues, bytes));
  for (size_t s = 0; s < stages.size(); ++s) {
    connections[s].gradients = std::move(gradients[s]);
    connections[s].values = std::move(values[s]);
    connections[s].shares = shares[s];
  }
}

}  // namespace medley
