#include "medley/program/relays.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "medley/base/at.h"
#include "medley/base/error.h"

namespace medley {
namespace {

// Smaller tensors are summed whole inside a mesh: what cutting them saves is less than a message.
constexpr int64_t kCutElements = 1 << 14;

// One stage's gradient of a parameter.
struct Holder {
  size_t stage = 0;
  ValueId value = kNone;
  State stored;
  bool gives = false;  // else it has no part of it
};

std::vector<std::pair<std::string, std::vector<Holder>>> find_holders(
    const std::vector<DecidedStage>& stages, const std::vector<std::string>& parameters) {
  std::map<std::string, std::vector<Holder>> known;
  for (size_t s = 0; s < stages.size(); ++s) {
    const Completed& completed = stages[s].completed;
    const Graph& graph = completed.prepared->graph;
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      const Output& output = graph.outputs[i];
      if (output.kind != OutputKind::kGradient) continue;
      known[output.name].push_back({s,
                                    output.value,
                                    completed.assignment.stored[i],
                                    graph.values[at(output.value)].producer != kNone});
    }
  }
  std::vector<std::pair<std::string, std::vector<Holder>>> shared;
  for (const std::string& parameter : parameters)
    if (const auto found = known.find(parameter); found != known.end() && found->second.size() > 1)
      shared.emplace_back(parameter, std::move(found->second));
  return shared;
}

// How a stage has a value that is on the way.
class Layouts {
 public:
  explicit Layouts(const DecidedStage& stage)
      : stage_(stage), symbols_(stage.completed.assignment.parts, stage.mesh) {}

  // As the update wants it, or as the stage has it, or evenly in a factor that nothing else cuts:
  // the first that is long enough.
  State on_the_way(const Holder& holder) const {
    const Assignment& assignment = stage_.completed.assignment;
    const State& own = assignment.states[at(holder.value)];
    const auto even = static_cast<int>(std::ranges::find(assignment.part_names, kEven) -
                                       assignment.part_names.begin());
    const std::vector<int64_t> sizes = factors(holder.value);
    State state = holder.stored;
    std::vector<bool> is_cut(sizes.size());
    for (const State* each : {&own, &holder.stored})
      for (size_t axis = 0; axis < each->size(); ++axis)
        if ((*each)[axis].holding == Holding::kSharded) is_cut[at((*each)[axis].position)] = true;
    const bool is_large = product_of(sizes) >= kCutElements;
    for (size_t axis = 0; axis < state.size(); ++axis) {
      if (state[axis].holding == Holding::kSharded || stage_.mesh[axis] == 1) continue;
      if (own[axis].holding == Holding::kSharded) {
        state[axis] = own[axis];
        continue;
      }
      for (size_t f = 0; is_large && f < sizes.size(); ++f) {
        if (is_cut[f] || sizes[f] < stage_.mesh[axis]) continue;
        is_cut[f] = true;
        state[axis] = sharded(static_cast<int>(f), even);
        break;
      }
    }
    return state;
  }

  Layout layout(ValueId value, const State& state) {
    Layout layout{factors(value), {}, {}, {}};
    const std::vector<Size> fulls = full_sizes(value);
    std::vector<std::pair<Size, Size>> cuts;  // [factor] offset, length
    for (size_t f = 0; f < fulls.size(); ++f) {
      const int position = static_cast<int>(f);
      cuts.emplace_back(symbols_.offset(state, position, fulls[f]),
                        symbols_.length(state, position, fulls[f]));
    }
    std::map<Box, int> known;
    for (const std::vector<int64_t>& table : tables()) {
      Box box;
      for (const auto& [offset, length] : cuts) {
        const int64_t begin = evaluate(offset, table);
        box.push_back({begin, begin + evaluate(length, table)});
      }
      if (volume(box) == 0) {
        layout.box_of.push_back(kNoBox);
        continue;
      }
      const auto [place, is_new] = known.try_emplace(box, static_cast<int>(layout.boxes.size()));
      if (is_new) layout.boxes.push_back(box);
      layout.box_of.push_back(place->second);
    }
    return layout;
  }

 private:
  std::vector<Size> full_sizes(ValueId value) const {
    std::vector<Size> sizes;
    for (ExtentId extent : flat_factors(*stage_.completed.factors, value))
      sizes.push_back(stage_.completed.factors->extent_sizes[at(extent)]);
    return sizes;
  }
  FactorSizes factors(ValueId value) const {
    FactorSizes sizes;
    for (const Size& size : full_sizes(value)) sizes.push_back(evaluate(size, {}));
    return sizes;
  }
  // Parameters have no rows: any micro-batch will do.
  std::vector<std::vector<int64_t>> tables() const {
    const Microbatch& first = stage_.microbatches[0];
    return symbols_.tables(first, 0, first.rows);
  }

  const DecidedStage& stage_;
  SymbolTable symbols_;
};

class Relays {
 public:
  Relays(const std::vector<DecidedStage>& stages, int64_t bucket_bytes)
      : stages_(stages), bucket_bytes_(bucket_bytes), all_(stages.size()) {
    for (const DecidedStage& stage : stages) layouts_.emplace_back(stage);
  }

  void add(const std::string& parameter, const std::vector<Holder>& holders) {
    std::vector<size_t> stages;
    for (const Holder& holder : holders) stages.push_back(holder.stage);
    const TensorType& type =
        type_of(stages_[stages[0]].completed.prepared->graph, holders[0].value);
    const int64_t bytes = num_bytes(type, {});
    if (stages != bucket_.stages || type.dtype != bucket_.dtype ||
        bucket_.bytes + bytes > bucket_bytes_)
      finish();
    bucket_.stages = stages;
    bucket_.dtype = type.dtype;
    bucket_.bytes += bytes;
    bucket_.parameters.emplace_back(parameter, holders);
  }

  std::vector<std::vector<StageRelay>> run() {
    finish();
    return std::move(all_);
  }

 private:
  struct Bucket {
    std::vector<size_t> stages;
    DType dtype = DType::kF32;
    int64_t bytes = 0;
    std::vector<std::pair<std::string, std::vector<Holder>>> parameters;
  };

  void finish() {
    const Bucket bucket = std::exchange(bucket_, {});
    if (bucket.parameters.empty()) return;
    StageRelay relay;
    relay.name = "relay gradients from " + bucket.parameters[0].first;
    std::map<size_t, int> first_member;  // [stage]
    for (size_t stage : bucket.stages) {
      first_member[stage] = static_cast<int>(relay.devices.size());
      const std::vector<int>& devices = stages_[stage].devices;
      relay.devices.insert(relay.devices.end(), devices.begin(), devices.end());
    }
    Relay cells;
    cells.members.resize(relay.devices.size());
    std::map<size_t, StageRelay> own;
    for (size_t t = 0; t < bucket.parameters.size(); ++t) {
      const auto& [parameter, holders] = bucket.parameters[t];
      std::vector<RelayHolder> relayed;
      for (const Holder& holder : holders) {
        const State state = layouts_[holder.stage].on_the_way(holder);
        own[holder.stage].tensors.push_back({parameter, state, holder.gives});
        relayed.push_back({layouts_[holder.stage].layout(holder.value, state),
                           first_member.at(holder.stage),
                           holder.gives,
                           true,
                           parameter});
        for (size_t d = 0; d < stages_[holder.stage].devices.size(); ++d) {
          RelayMember& member = cells.members[at(first_member.at(holder.stage)) + d];
          if (holder.gives) member.inputs.push_back(static_cast<int>(t));
          member.outputs.push_back(static_cast<int>(t));
        }
      }
      cells.tensors.push_back(tensor(std::move(relayed)));
    }
    relay.cells = std::make_shared<const Relay>(std::move(cells));
    for (auto& [stage, each] : own) {
      relay.tensors = std::move(each.tensors);
      all_[stage].push_back(relay);
    }
  }

  // Repeated layers lie alike.
  std::shared_ptr<const RelayTensor> tensor(std::vector<RelayHolder> holders) {
    for (const auto& [others, cells] : known_)
      if (std::ranges::equal(others, holders, [](const RelayHolder& a, const RelayHolder& b) {
            return a.layout == b.layout && a.first_member == b.first_member && a.gives == b.gives;
          }))
        return cells;
    auto cells = std::make_shared<const RelayTensor>(relay_tensor(holders));
    known_.emplace_back(std::move(holders), cells);
    return cells;
  }

  const std::vector<DecidedStage>& stages_;
  const int64_t bucket_bytes_;
  std::vector<Layouts> layouts_;  // [stage]
  std::vector<std::vector<StageRelay>> all_;
  Bucket bucket_;
  std::vector<std::pair<std::vector<RelayHolder>, std::shared_ptr<const RelayTensor>>> known_;
};

}  // namespace

std::vector<std::vector<StageRelay>> connect_relays(const std::vector<DecidedStage>& stages,
                                                    const std::vector<std::string>& parameters,
                                                    int64_t bucket_bytes) {
  Relays relays(stages, bucket_bytes);
  for (const auto& [parameter, holders] : find_holders(stages, parameters))
    relays.add(parameter, holders);
  return relays.run();
}

}  // namespace medley
