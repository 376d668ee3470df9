// verify_gradient_syncs(): the terms of gradient syncs, and the order of new values.

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "medley/base/at.h"
#include "medley/base/parallel.h"
#include "medley/program/verify_parts.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

int64_t elements_of(const LoweredStage& stage, ValueId value, size_t device) {
  int64_t count = 1;
  for (const Size& size : type_of(stage.graph, value).shape)
    count *= evaluate(size, stage.tables[0][device]);
  return count;
}

// One stage's inputs and outputs of a gradient sync.
class GradientSyncVerifier {
 public:
  GradientSyncVerifier(const LoweredStage& stage, size_t s, const Communication& sync)
      : stage_(stage), sync_(sync), place_(fmt::format("{}: {}", stage_name(s), sync.name)) {
    for (int device : stage.devices)
      members_.push_back(
          static_cast<int>(std::ranges::find(sync.devices, device) - sync.devices.begin()));
  }

  void run() const {
    for (size_t d = 0; d < members_.size(); ++d) {
      const SyncMember& own = sync_.sync->members[at(members_[d])];
      expect_elements(d, sync_.inputs, own.inputs, "inputs", given);
      expect_elements(d, sync_.outputs, own.outputs, "outputs", taken);
    }
    for (size_t i = 0; i < sync_.inputs.size(); ++i) expect_terms(i);
  }

 private:
  // Checks elements of a device; a replica of an earlier device gives none.
  template <typename Count>
  void expect_elements(size_t d,
                       const std::vector<ValueId>& values,
                       const std::vector<int>& tensors,
                       const char* what,
                       Count count) const {
    expect_program(values.size() == tensors.size(),
                   place_,
                   "found {} {}, expected {}",
                   values.size(),
                   what,
                   tensors.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t in_cells = count(*sync_.sync->tensors.at(at(tensors[i])), members_[d]);
      const int64_t in_value = elements_of(stage_, values[i], d);
      expect_program(in_cells == in_value || (in_cells == 0 && &values == &sync_.inputs),
                     place_,
                     "device {}: value {}: found {} elements, expected the {} of its cells",
                     stage_.devices[d],
                     values[i],
                     in_value,
                     in_cells);
    }
  }

  // Checks terms. Every stage with an input of a gradient gives all elements, each once. New values
  // are given once by all stages together. A stage with elements gives some.
  void expect_terms(size_t i) const {
    const int number = sync_.sync->members[at(members_[0])].inputs[i];
    const SyncTensor& tensor = *sync_.sync->tensors[at(number)];
    int64_t total = 0, from_all = 0, own = 0, here = 0;
    for (const SyncCell& cell : tensor) {
      total += cell.length;
      from_all += cell.length * std::ssize(cell.from);
    }
    for (size_t d = 0; d < members_.size(); ++d) {
      own += given(tensor, members_[d]);
      here += elements_of(stage_, sync_.inputs[i], d);
    }
    expect_program((own == total || from_all == total) && (own > 0 || here == 0),
                   place_,
                   "tensor {}: found {} elements given here and {} by all, expected the "
                   "{} that it has, of each stage or of all together",
                   number,
                   own,
                   from_all,
                   total);
  }

  const LoweredStage& stage_;
  const Communication& sync_;
  const std::string place_;
  std::vector<int> members_;  // [device]
};

// One stage's update, followed to the first gradient sync of new values and from there on.
class CommitVerifier {
 public:
  CommitVerifier(const LoweredStage& stage, size_t s) : stage_(stage), s_(s) {}

  void run() {
    find_values();
    if (values_.empty()) return;
    for (const bool updates : {false, true})
      for (const Function& function : stage_.functions)
        if ((function.kind == FunctionKind::kUpdate) == updates)
          for (const Item& item : items_of(function.steps)) follow(item, updates);
  }

 private:
  const Communication& communication(int id) const { return stage_.communications[at(id)]; }

  // Finds the gradient syncs whose sums are assigned on arrival.
  void find_values() {
    std::set<ValueId> assigned;
    for (const Function& function : stage_.functions)
      for (const Assign& assign : function.assigns) {
        assigned.insert(assign.from);
        const OpId view = stage_.graph.values[at(assign.from)].producer;
        if (view == kNone || stage_.graph.ops[at(view)].name != "aten.view.default") continue;
        for (ValueId value : operands(stage_.graph.ops[at(view)])) assigned.insert(value);
      }
    for (size_t i = 0; i < stage_.communications.size(); ++i)
      if (stage_.communications[i].sync &&
          std::ranges::any_of(stage_.communications[i].outputs,
                              [&](ValueId value) { return assigned.contains(value); }))
        values_.insert(static_cast<int>(i));
  }

  void follow(const Item& item, bool updates) {
    if (item.kind == Item::Kind::kWait) under_way_.erase(item.index);
    if (item.kind != Item::Kind::kPost || !is_sum_over_stages(communication(item.index))) return;
    if (updates && !check_order(item.index)) return;
    under_way_.insert(item.index);
  }

  // Returns whether the update posts a sum other than of new values.
  bool check_order(int id) {
    const Communication& posted = communication(id);
    const std::string place = fmt::format("{}: {}", stage_name(s_), posted.name);
    if (values_.contains(id)) {
      expect_program(under_way_.empty(),
                     place,
                     "found it posted before the wait for {}, expected new values to "
                     "set out behind all sums over stages",
                     under_way_.empty() ? "" : communication(*under_way_.begin()).name);
      has_set_out_ = true;
      return false;
    }
    expect_program(!has_set_out_ || std::ranges::count(posted.outputs, stage_.loss) > 0,
                   place,
                   "found it posted behind new values, expected the loss only");
    return true;
  }

  const LoweredStage& stage_;
  const size_t s_;
  std::set<int> values_;     // gradient syncs of new values
  std::set<int> under_way_;  // other sums over stages
  bool has_set_out_ = false;
};

}  // namespace

void verify_gradient_syncs(const Program& program) {
  std::set<const GradientSync*> known;
  std::vector<std::pair<const GradientSync*, std::string>> all;  // with their places
  for (size_t s = 0; s < program.stages.size(); ++s)
    for (const Communication& communication : program.stages[s].communications) {
      if (communication.kind != CommunicationKind::kGradientSync) continue;
      const std::string place = fmt::format("{}: {}", stage_name(s), communication.name);
      expect_program(
          communication.sync && communication.sync->members.size() == communication.devices.size(),
          place,
          "expected cells of {} members",
          communication.devices.size());
      if (known.insert(communication.sync.get()).second)
        all.emplace_back(communication.sync.get(), "program: " + place);
    }
  for_each_in_parallel(all.size(), [&](size_t i) { verify(*all[i].first, all[i].second); });
  for_each_in_parallel(program.stages.size(), [&](size_t s) {
    const LoweredStage& stage = program.stages[s];
    for (const Communication& communication : stage.communications)
      if (communication.kind == CommunicationKind::kGradientSync)
        GradientSyncVerifier(stage, s, communication).run();
    CommitVerifier(stage, s).run();
  });
}

}  // namespace medley
