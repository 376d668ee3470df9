#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "medley/base/error.h"
#include "medley/program/calls.h"
#include "medley/program/program.h"

namespace medley {
namespace {

// Follows the calls of one step and checks that every value is there when it is read, and has not
// been replaced.
class StageVerifier {
 public:
  StageVerifier(const LoweredStage& stage, bool microbatches_are_batches)
      : stage_(stage), assigns_in_forward_(microbatches_are_batches) {}

  void run() {
    const size_t values = stage_.graph.values.size();
    MEDLEY_CHECK_EQ(stage_.lifetimes.size(), values);
    MEDLEY_CHECK_EQ(stage_.inputs.size(), stage_.graph.inputs.size());
    const int64_t devices = along(stage_.mesh, kWholeMesh).count;
    MEDLEY_CHECK_EQ(static_cast<int64_t>(stage_.devices.size()), devices);
    for (const auto& tables : stage_.tables) {
      MEDLEY_CHECK_EQ(static_cast<int64_t>(tables.size()), devices);
      for (const auto& table : tables) {
        MEDLEY_CHECK_EQ(table.size(), stage_.graph.symbols.size());
        MEDLEY_CHECK(
            std::all_of(table.begin(), table.end(), [](int64_t value) { return value >= 0; }));
      }
    }
    for (const Function& function : stage_.functions)
      MEDLEY_CHECK(functions_.emplace(function.kind, &function).second);
    for (const Input& input : stage_.graph.inputs)
      if (lifetime(input.value) == Lifetime::kRun) live_run_[at(input.value)] = true;
    for (const Op& op : stage_.graph.ops) read_by_.push_back(operands(op));
    for (const Call& call : stage_.calls) {
      enter(call.microbatch);
      follow(call);
    }
    MEDLEY_CHECK(posted_.empty());
    MEDLEY_CHECK(stage_.loss == kNone || live_run_.at(at(stage_.loss)));
  }

 private:
  Lifetime lifetime(ValueId value) const { return stage_.lifetimes.at(static_cast<size_t>(value)); }

  static size_t at(ValueId value) { return static_cast<size_t>(value); }

  void enter(int microbatch) {
    auto [found, added] = live_microbatch_.try_emplace(microbatch);
    live_here_ = &found->second;
    if (!added) return;
    live_here_->resize(stage_.graph.values.size());
    for (const Input& input : stage_.graph.inputs)
      if (input.kind == InputKind::kBatch) (*live_here_)[at(input.value)] = true;
  }

  // Where a value of the present micro-batch is noted.
  std::vector<bool>& live(ValueId value) {
    return lifetime(value) == Lifetime::kMicrobatch ? *live_here_ : live_run_;
  }

  void read(ValueId value, std::string_view who, std::string_view where = "") {
    if (const auto found = replaced_.find(value);
        found != replaced_.end() && found->second.function != call_.function)
      throw Error(Blame::kUs,
                  fmt::format("program: {}: {} reads value {}, which {} has replaced",
                              to_string(call_),
                              who,
                              value,
                              to_string(found->second)));
    if (!live(value)[at(value)])
      throw Error(
          Blame::kUs,
          fmt::format("program: {}{} reads value {}, which is not there", where, who, value));
  }

  void follow(const Call& call) {
    call_ = call;
    const auto found = functions_.find(call.function);
    MEDLEY_CHECK(found != functions_.end());
    MEDLEY_CHECK(call.microbatch >= 0 &&
                 static_cast<size_t>(call.microbatch) < stage_.tables.size());
    for (const Step& step : found->second->steps) {
      if (const auto* segment = std::get_if<Segment>(&step)) follow(*segment);
      if (const auto* post = std::get_if<Post>(&step)) {
        const Communication& communication =
            stage_.communications.at(static_cast<size_t>(post->communication));
        for (ValueId value : communication.inputs) read(value, communication.name);
        for (ValueId value : post->dies) live(value)[at(value)] = false;
        MEDLEY_CHECK(!only_receives(communication));
        // Who sends does not wait.
        if (!only_sends(communication)) MEDLEY_CHECK(posted_.insert(post->communication).second);
      }
      if (const auto* wait = std::get_if<Wait>(&step)) {
        const Communication& communication =
            stage_.communications.at(static_cast<size_t>(wait->communication));
        const size_t posts = only_receives(communication) ? 0 : 1;
        MEDLEY_CHECK_EQ(posted_.erase(wait->communication), posts);
        for (ValueId value : communication.outputs) live(value)[at(value)] = true;
      }
    }
    for (const Assign& assign : found->second->assigns) {
      read(assign.from, "an assignment");
      MEDLEY_CHECK(lifetime(assign.to) == Lifetime::kRun);
      if (call.function != FunctionKind::kUpdate &&
          !(call.function == FunctionKind::kForward && assigns_in_forward_))
        throw Error(Blame::kUs,
                    fmt::format("program: {}: replaces value {}, expected the update to do so",
                                to_string(call),
                                assign.to));
    }
    for (const Assign& assign : found->second->assigns) replaced_[assign.to] = call;
  }

  void follow(const Segment& segment) {
    MEDLEY_CHECK_EQ(segment.ops.size(), segment.dies.size());
    for (size_t i = 0; i < segment.ops.size(); ++i) {
      const Op& op = stage_.graph.ops.at(static_cast<size_t>(segment.ops[i]));
      for (ValueId value : read_by_[static_cast<size_t>(segment.ops[i])])
        if (value != kNone) read(value, op.name);
      for (ValueId value : op.results)
        if (value != kNone) live(value)[at(value)] = true;
      for (ValueId value : segment.dies[i]) {
        read(value, op.name, "the end of ");
        live(value)[at(value)] = false;
      }
    }
  }

  const LoweredStage& stage_;
  const bool assigns_in_forward_;
  Call call_{};                       // that is followed
  std::map<ValueId, Call> replaced_;  // by the last call that did
  std::map<FunctionKind, const Function*> functions_;
  std::vector<bool> live_run_ = std::vector<bool>(stage_.graph.values.size());
  std::map<int, std::vector<bool>> live_microbatch_;
  std::vector<bool>* live_here_ = nullptr;     // of the call that is followed
  std::vector<std::vector<ValueId>> read_by_;  // [op]
  std::set<int> posted_;
};

}  // namespace

void verify(const Program& program) {
  MEDLEY_CHECK(!program.stages.empty());
  for (const LoweredStage& stage : program.stages)
    StageVerifier(stage, program.microbatches_are_batches).run();
}

}  // namespace medley
