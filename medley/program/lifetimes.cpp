#include "medley/program/lifetimes.h"

#include <algorithm>

#include "medley/base/at.h"

namespace medley {
namespace {

// A set of values or communications, by number.
class Marks {
 public:
  explicit Marks(size_t all) : marked_(all) {}
  Marks(size_t all, const std::vector<ValueId>& values) : Marks(all) {
    for (ValueId value : values) insert(value);
  }
  // Returns whether it is new. kNone is in no set.
  bool insert(int number) {
    if (number == kNone || marked_[at(number)]) return false;
    return marked_[at(number)] = true;
  }
  bool contains(int number) const { return number != kNone && marked_[at(number)]; }

 private:
  std::vector<bool> marked_;
};

class FunctionMaker {
 public:
  FunctionMaker(const LoweredStage& stage,
                const std::map<Phase, std::vector<Item>>& items,
                const std::vector<ValueId>& keep)
      : stage_(stage), items_(items), keep_(stage.graph.values.size(), keep) {
    for (const auto& [phase, order] : items) {
      Marks& used = used_in_.try_emplace(phase, stage.graph.values.size()).first->second;
      for (const Item& item : order)
        for (ValueId value : uses(stage, item)) used.insert(value);
    }
  }

  std::vector<Function> run() const {
    std::vector<Function> functions;
    const auto add = [&](FunctionKind kind, Phase phase, bool last) {
      const auto found = items_.find(phase);
      if (found != items_.end() && !found->second.empty())
        functions.push_back(make(kind, phase, found->second, last));
    };
    for (int k = 0; k < kPrologues; ++k) {
      add(prologue_kind(k, false), static_cast<Phase>(k), false);
      add(prologue_kind(k, true), static_cast<Phase>(k), true);
    }
    add(FunctionKind::kForward, Phase::kForward, false);
    add(FunctionKind::kBackward, Phase::kBackward, false);
    add(FunctionKind::kBackwardLast, Phase::kBackward, true);
    add(FunctionKind::kUpdate, Phase::kUpdate, false);
    return functions;
  }

 private:
  bool used_in(Phase phase, ValueId value) const {
    const auto found = used_in_.find(phase);
    return found != used_in_.end() && found->second.contains(value);
  }

  // Returns whether a value is no longer needed after its last use in this function.
  bool may_die(Phase phase, bool last, ValueId value) const {
    if (keep_.contains(value)) return false;
    switch (stage_.lifetimes[at(value)]) {
      case Lifetime::kRun:
        return false;
      case Lifetime::kMicrobatch:
        for (const auto& [later, used] : used_in_)
          if (phase < later && later != Phase::kUpdate && used.contains(value)) return false;
        return true;
      case Lifetime::kStep:
        if (phase == Phase::kUpdate) return true;
        return last && phase == Phase::kBackward && !used_in(Phase::kUpdate, value);
    }
    return false;
  }

  Function make(FunctionKind kind, Phase phase, const std::vector<Item>& order, bool last) const {
    std::vector<Item> chosen;
    for (const Item& item : order)
      if (last || !item.last_only || phase == Phase::kUpdate) chosen.push_back(item);
    std::vector<std::vector<ValueId>> dies(chosen.size());
    Marks seen(stage_.graph.values.size());
    for (size_t i = chosen.size(); i-- > 0;) {
      std::vector<ValueId> values = uses(stage_, chosen[i]);
      // Unread results die immediately.
      for (ValueId value : definitions(stage_, chosen[i]))
        if (chosen[i].kind == Item::Kind::kOp) values.push_back(value);
      for (ValueId value : values)
        if (seen.insert(value) && may_die(phase, last, value)) dies[i].push_back(value);
    }
    Function function{kind, {}, {}};
    for (size_t i = 0; i < chosen.size(); ++i) {
      switch (chosen[i].kind) {
        case Item::Kind::kOp: {
          if (function.steps.empty() || !std::holds_alternative<Segment>(function.steps.back()))
            function.steps.emplace_back(Segment{});
          auto& segment = std::get<Segment>(function.steps.back());
          segment.ops.push_back(chosen[i].index);
          segment.dies.push_back(dies[i]);
          break;
        }
        case Item::Kind::kPost:
          function.steps.emplace_back(Post{chosen[i].index, dies[i]});
          break;
        case Item::Kind::kWait:
          function.steps.emplace_back(Wait{chosen[i].index});
          break;
      }
    }
    return function;
  }

  const LoweredStage& stage_;
  const std::map<Phase, std::vector<Item>>& items_;
  Marks keep_;
  std::map<Phase, Marks> used_in_;
};

}  // namespace

void prefetch_parameters(const LoweredStage& stage, std::vector<Item>& order) {
  const auto gathers = [&](const Item& item) {
    if (item.kind == Item::Kind::kOp) return false;
    const std::vector<ValueId>& inputs = stage.communications[at(item.index)].inputs;
    return !item.last_only && !inputs.empty() &&
           std::all_of(inputs.begin(), inputs.end(), [&](ValueId value) {
             return stage.lifetimes[at(value)] == Lifetime::kRun;
           });
  };
  size_t earliest = 0;  // index of the previous gathering's wait
  for (size_t i = 0; i < order.size(); ++i) {
    if (!gathers(order[i])) continue;
    if (order[i].kind == Item::Kind::kPost) {
      const auto first = order.begin() + static_cast<std::ptrdiff_t>(earliest);
      std::rotate(first,
                  order.begin() + static_cast<std::ptrdiff_t>(i),
                  order.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    } else {
      earliest = i;
    }
  }
}

void drop_unused(const LoweredStage& stage,
                 std::map<Phase, std::vector<Item>>& items,
                 const std::vector<ValueId>& keep) {
  Marks used(stage.graph.values.size(), keep);
  Marks dropped(stage.communications.size());
  const auto may_drop = [&](const Item& item) {
    if (item.kind == Item::Kind::kPost) return dropped.contains(item.index);
    const std::vector<ValueId>& results = definitions(stage, item);
    if (std::any_of(
            results.begin(), results.end(), [&](ValueId value) { return used.contains(value); }))
      return false;
    if (item.kind == Item::Kind::kOp) return true;
    // Other stages depend on theirs.
    if (!stage.communications[at(item.index)].devices.empty()) return false;
    dropped.insert(item.index);
    return true;
  };
  for (auto phase = items.rbegin(); phase != items.rend(); ++phase) {
    std::vector<Item> needed;
    for (auto item = phase->second.rbegin(); item != phase->second.rend(); ++item) {
      if (may_drop(*item)) continue;
      needed.push_back(*item);
      for (ValueId value : uses(stage, *item)) used.insert(value);
    }
    phase->second.assign(needed.rbegin(), needed.rend());
  }
}

std::vector<Function> make_functions(const LoweredStage& stage,
                                     const std::map<Phase, std::vector<Item>>& items,
                                     const std::vector<ValueId>& keep) {
  return FunctionMaker(stage, items, keep).run();
}

}  // namespace medley
