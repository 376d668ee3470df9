// Checks the invariants of partitions: verify().

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/stages/stages.h"

namespace medley {
namespace {

class PartitionVerifier {
 public:
  PartitionVerifier(const Graph& graph, const Positions& positions, const Partition& partition)
      : graph_(graph), positions_(positions), partition_(partition) {}

  void run() {
    counts_.assign(graph_.ops.size(), 0);
    stage_.assign(graph_.ops.size(), kNone);
    for (const std::vector<OpId>& ops : partition_.ops)
      if (!std::is_sorted(ops.begin(), ops.end(), std::less_equal<>()))
        fail("a stage", "its ops must be in the graph's order");
    for (size_t s = 0; s < partition_.ops.size(); ++s)
      for (OpId id : partition_.ops[s]) {
        ++counts_[at(id)];
        stage_[at(id)] = static_cast<int>(s);
      }
    for (size_t i = 0; i < graph_.ops.size(); ++i) check_presence(static_cast<OpId>(i));
    check_order();
    for (size_t t = 0; t < partition_.transfers.size(); ++t) check_transfer(t);
    for (size_t s = 0; s < partition_.ops.size(); ++s) check_stage(static_cast<int>(s));
    for (const Output& output : graph_.outputs)
      if (output.kind == OutputKind::kBuffer) check_changing(output);
    for (const Transfer& transfer : partition_.transfers)
      for (int to : transfer.to)
        if (!read_.contains({transfer.value, to}))
          fail(transfer.name, fmt::format("stage {} must read what is sent to it", to));
    for (const auto& [id, terms] : positions_.terms)
      for (ValueId term : terms) check_term(id, term);
    for (const Output& output : graph_.outputs) {
      const OpId producer = graph_.values[at(output.value)].producer;
      if (producer != kNone && counts_[at(producer)] == 0)
        fail(to_string(output.kind) + " " + output.name, "must be made");
    }
  }

 private:
  [[noreturn]] void fail(const std::string& place,
                         const std::string& what,
                         Blame blame = Blame::kUs) const {
    throw Error(blame, fmt::format("stages of graph \"{}\": {}: {}", graph_.name, place, what));
  }
  std::string place(OpId id) const {
    return fmt::format(
        "op {} {} in \"{}\"", id, graph_.ops[at(id)].name, graph_.ops[at(id)].module);
  }

  void check_presence(OpId id) const {
    const Presence presence = positions_.presence[at(id)];
    const bool once = presence == Presence::kOnce;
    if (counts_[at(id)] < 1 && presence != Presence::kWhereRead)
      fail(place(id), "must be in a stage");
    if (once && counts_[at(id)] > 1) fail(place(id), "must be in one stage only");
  }

  void check_order() const {
    int before = 0;
    for (OpId id : positions_.sequence) {
      if (stage_[at(id)] < before) fail(place(id), "forward stages must ascend");
      before = stage_[at(id)];
    }
    if (before + 1 != static_cast<int>(partition_.ops.size())) fail("forward", "must fill stages");
  }

  void check_transfer(size_t t) {
    const Transfer& transfer = partition_.transfers[t];
    const OpId producer = graph_.values[at(transfer.value)].producer;
    if (producer == kNone || counts_[at(producer)] != 1 || stage_[at(producer)] != transfer.from)
      fail(transfer.name, "must be made in the stage that sends it, and there only");
    if (transfer.to.empty()) fail(transfer.name, "must go somewhere");
    for (int to : transfer.to) {
      if (to == transfer.from) fail(transfer.name, "must go to another stage");
      if (to > transfer.from && graph_.ops[at(producer)].phase == Phase::kBackward)
        fail(transfer.name, "gradients must go down");
      if (!arrivals_.emplace(std::pair(transfer.value, to), transfer.from).second)
        fail(transfer.name, "must be sent once");
    }
  }

  void check_stage(int stage) {
    std::vector<bool> made(graph_.values.size(), false);
    for (const Input& input : graph_.inputs) made[at(input.value)] = true;
    for (OpId id : partition_.ops[at(stage)]) {
      const Op& op = graph_.ops[at(id)];
      const auto sum = positions_.terms.find(id);
      bool any = sum == positions_.terms.end();
      for (ValueId value : operands(op)) {
        if (value == kNone) continue;
        const bool term =
            sum != positions_.terms.end() &&
            std::find(sum->second.begin(), sum->second.end(), value) != sum->second.end();
        any = any || (term && made[at(value)]);
        if (graph_.values[at(value)].producer == kNone) reads_.insert({value, stage});
        if (term || made[at(value)]) continue;
        const auto arrival = arrivals_.find({value, stage});
        if (arrival == arrivals_.end())
          fail(place(id), fmt::format("%{} must be available in stage {}", value, stage));
        if (op.phase != Phase::kBackward && arrival->second > stage)
          fail(place(id),
               fmt::format("%{} comes down only after the forward phase: no cut here", value),
               Blame::kCaller);  // a plan may require such a cut
        read_.insert({value, stage});
      }
      if (!any) fail(place(id), fmt::format("stage {} must have a term of the sum", stage));
      for (ValueId value : op.results)
        if (value != kNone) made[at(value)] = true;
    }
  }

  // Checks that stages that read the buffer store it, and that all of these have its new value.
  void check_changing(const Output& output) {
    const std::string place = "buffer " + output.name;
    const auto changing = std::ranges::find(
        partition_.changing, output.name, [](const Changing& c) { return c.buffer; });
    if (changing == partition_.changing.end() || changing->holders.empty())
      fail(place, "must be held by a stage");
    ValueId old = kNone;
    for (const Input& input : graph_.inputs)
      if (input.kind == InputKind::kBuffer && input.name == output.name) old = input.value;
    const OpId producer = graph_.values[at(output.value)].producer;
    for (int s = 0; s < static_cast<int>(partition_.ops.size()); ++s) {
      const bool holds = std::ranges::count(changing->holders, s) > 0;
      if (reads_.contains({old, s}) && !holds)
        fail(place, fmt::format("stage {} must hold what it reads", s));
      if (!holds || producer == kNone ||
          std::ranges::binary_search(partition_.ops[at(s)], producer))
        continue;
      if (!arrivals_.contains({output.value, s}))
        fail(place, fmt::format("stage {} must have its new value", s));
      read_.insert({output.value, s});
    }
  }

  // Checks that exactly the stages that compute a part of the term add it.
  void check_term(OpId id, ValueId term) const {
    const OpId producer = graph_.values[at(term)].producer;
    for (size_t s = 0; s < partition_.ops.size(); ++s) {
      const std::vector<OpId>& ops = partition_.ops[s];
      const bool makes = std::binary_search(ops.begin(), ops.end(), producer);
      if (makes && !std::binary_search(ops.begin(), ops.end(), id))
        fail(place(id), fmt::format("stage {} must add its term %{}", s, term));
      if (arrivals_.contains({term, static_cast<int>(s)}))
        fail(place(id), fmt::format("the term %{} must not travel", term));
    }
    if (positions_.presence[at(producer)] == Presence::kWhereRead && counts_[at(producer)] != 1)
      fail(place(id), fmt::format("the term %{} must be made once", term));
  }

  const Graph& graph_;
  const Positions& positions_;
  const Partition& partition_;
  std::vector<int> counts_, stage_;                  // [op] number of stages with it; one of them
  std::map<std::pair<ValueId, int>, int> arrivals_;  // (value, stage) -> from
  std::set<std::pair<ValueId, int>> read_;           // (value, stage) of arrivals
  std::set<std::pair<ValueId, int>> reads_;          // (value, stage) of inputs
};

}  // namespace

void verify(const Graph& graph, const Positions& positions, const Partition& partition) {
  PartitionVerifier(graph, positions, partition).run();
}

}  // namespace medley
