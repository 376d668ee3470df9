// verify_values(): values of one stage, function by function and then call by call.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "medley/base/at.h"
#include "medley/ops/update_ops.h"
#include "medley/program/verify_parts.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

using Values = std::vector<ValueId>;  // ascending

Values sorted(Values values) {
  std::ranges::sort(values);
  return values;
}
bool has(const Values& values, ValueId value) { return std::ranges::binary_search(values, value); }

Values with(const Values& a, const Values& b) {
  Values all;
  std::ranges::set_union(a, b, std::back_inserter(all));
  return all;
}
Values without(const Values& a, const Values& b) {
  Values rest;
  std::ranges::set_difference(a, b, std::back_inserter(rest));
  return rest;
}

struct Read {
  ValueId value;
  std::string who;
};

// The effect of a function between its beginning and its end. kRun values are only read.
struct Summary {
  const Function* function = nullptr;
  std::vector<Read> needs;  // earlier values of any lifetime; each once
  Values reads;             // all
  Values makes;             // alive at the end
  Values frees;             // earlier values
  std::vector<int> posts;   // awaited later
  std::vector<int> awaits;  // posted before
};

class Summarizer {
 public:
  Summarizer(const LoweredStage& stage, std::string place, const Function& function)
      : stage_(stage), place_(std::move(place)), known_(stage.graph.values.size(), Known::kBefore) {
    summary_.function = &function;
  }

  Summary run() {
    for (const Step& step : summary_.function->steps) std::visit(*this, step);
    for (const Assign& assign : summary_.function->assigns) {
      check_assign(assign);
      read(assign.from, "an assignment");
    }
    for (size_t v = 0; v < known_.size(); ++v) {
      const auto value = static_cast<ValueId>(v);
      if (known_[v] == Known::kMade) summary_.makes.push_back(value);
      if (known_[v] == Known::kFreedFromBefore) summary_.frees.push_back(value);
    }
    summary_.reads = sorted(std::move(summary_.reads));
    summary_.posts.assign(posted_.begin(), posted_.end());
    return std::move(summary_);
  }

  void operator()(const Segment& segment) {
    if (segment.dies.size() != segment.ops.size())
      refuse("a segment",
             fmt::format("found {} lists of values to free for {} ops",
                         segment.dies.size(),
                         segment.ops.size()));
    for (size_t i = 0; i < segment.ops.size(); ++i) {
      const OpId id = segment.ops[i];
      if (id < 0 || at(id) >= stage_.graph.ops.size())
        refuse("a segment", fmt::format("found op {}, which the graph lacks", id));
      const Op& op = stage_.graph.ops[at(id)];
      const std::string who = fmt::format("op {} {}", id, op.name);
      if (!ops_.insert(id).second) refuse(who, "found a second time, expected once");
      Values own = operands(op);
      for (ValueId value : own)
        if (value != kNone) read(value, who);
      for (ValueId value : op.results)
        if (value != kNone) make(value, who);
      own.insert(own.end(), op.results.begin(), op.results.end());
      for (ValueId value : segment.dies[i]) free(value, own, who);
    }
  }
  void operator()(const Post& post) {
    const Communication& communication = find(post.communication);
    if (only_receives(communication))
      refuse(communication.name, "found a post, expected those who receive only to wait");
    for (ValueId value : communication.inputs) read(value, communication.name);
    for (ValueId value : post.dies) free(value, communication.inputs, communication.name);
    if (only_sends(communication)) return;
    if (!posted_.insert(post.communication).second)
      refuse(communication.name, "found posted again, expected a wait before");
  }
  void operator()(const Wait& wait) {
    const Communication& communication = find(wait.communication);
    if (only_sends(communication))
      refuse(communication.name, "found a wait, expected those who send only to post");
    if (!only_receives(communication) && posted_.erase(wait.communication) == 0)
      summary_.awaits.push_back(wait.communication);
    for (ValueId value : communication.outputs) make(value, communication.name);
  }

 private:
  enum class Known : uint8_t { kBefore, kNeeded, kMade, kFreed, kFreedFromBefore };

  [[noreturn]] void refuse(const std::string& who, const std::string& what) const {
    refuse_program(fmt::format("{}: {}", place_, who), what);
  }
  const Communication& find(int id) const {
    if (id < 0 || at(id) >= stage_.communications.size())
      refuse("a step", fmt::format("found communication {}, which the stage lacks", id));
    return stage_.communications[at(id)];
  }
  Known& known(ValueId value, const std::string& who) {
    if (value < 0 || at(value) >= known_.size())
      refuse(who, fmt::format("found value {}, which the graph lacks", value));
    return known_[at(value)];
  }
  bool is_run(ValueId value) const { return stage_.lifetimes[at(value)] == Lifetime::kRun; }

  void read(ValueId value, const std::string& who) {
    Known& state = known(value, who);
    if (state == Known::kFreed || state == Known::kFreedFromBefore)
      refuse(who, fmt::format("reads value {}, which has been freed", value));
    if (state == Known::kBefore) {
      summary_.needs.push_back({value, who});
      summary_.reads.push_back(value);
      state = Known::kNeeded;
    } else if (state == Known::kMade) {
      summary_.reads.push_back(value);
    }
  }
  void make(ValueId value, const std::string& who) {
    Known& state = known(value, who);
    if (is_run(value))
      refuse(who,
             fmt::format("makes value {}, expected an assignment to what outlives steps", value));
    if (state != Known::kBefore)
      refuse(who, fmt::format("makes value {}, which is there already or has been read", value));
    state = Known::kMade;
  }
  // Checks that a value is freed by its last reader, or by the maker of an unread value.
  void free(ValueId value, const Values& own, const std::string& who) {
    Known& state = known(value, who);
    if (is_run(value)) refuse(who, fmt::format("frees value {}, which outlives steps", value));
    if (std::ranges::find(own, value) == own.end())
      refuse(who, fmt::format("frees value {}, which it neither reads nor makes", value));
    if (state != Known::kMade && state != Known::kNeeded)
      refuse(who, fmt::format("frees value {}, which has been freed", value));
    // Earlier calls may have made a value of the step, too.
    const bool only_here =
        state == Known::kMade && stage_.lifetimes[at(value)] == Lifetime::kMicrobatch;
    state = only_here ? Known::kFreed : Known::kFreedFromBefore;
  }

  void check_assign(const Assign& assign) {
    const std::string who = fmt::format("assignment to value {}", assign.to);
    known(assign.to, who);
    known(assign.from, who);
    if (!is_run(assign.to)) refuse(who, "expected a value that outlives steps");
    if (!assigned_.insert(assign.to).second) refuse(who, "found a second one, expected one");
    if (type_of(stage_.graph, assign.from) != type_of(stage_.graph, assign.to))
      refuse(who, fmt::format("found value {} of another type", assign.from));
  }

  const LoweredStage& stage_;
  const std::string place_;
  std::vector<Known> known_;  // [value]
  std::set<OpId> ops_;
  std::set<ValueId> assigned_;
  std::set<int> posted_;
  Summary summary_;
};

// Gives equal states equal numbers, so that their successors are computed once.
template <typename State>
class Interned {
 public:
  int number(const State& state) {
    const auto [found, is_new] = numbers_.try_emplace(state, static_cast<int>(states_.size()));
    if (is_new) states_.push_back(state);
    return found->second;
  }
  const State& operator[](int number) const { return states_[at(number)]; }

 private:
  std::map<State, int> numbers_;
  std::vector<State> states_;
};

class ValueVerifier {
 public:
  ValueVerifier(const Program& program, size_t number)
      : program_(program), number_(number), stage_(program.stages[number]) {}

  void run() {
    note_kept();
    for (const Function& function : stage_.functions) {
      const std::string place = stage_name(number_) + ": " + function_name(function.kind);
      Summary summary = Summarizer(stage_, place, function).run();
      if (!summaries_.emplace(function.kind, std::move(summary)).second)
        refuse_program(place, "found a second function of its kind, expected one");
      check_who_assigns(function, place);
    }
    for (int k = 0; k < kPrologues; ++k)
      check_variants(prologue_kind(k, false), prologue_kind(k, true));
    check_variants(FunctionKind::kBackward, FunctionKind::kBackwardLast);
    check_calls();
    verify_turns(stage_, stage_name(number_));
    follow_calls();
  }

 private:
  struct Microbatch {  // a state between its calls
    Values alive;
    std::vector<FunctionKind> done;
    auto operator<=>(const Microbatch&) const = default;
  };
  struct Step {  // kStep and kRun values between two calls
    Values alive;
    std::vector<int> posted;
    std::map<ValueId, FunctionKind> replaced;
    auto operator<=>(const Step&) const = default;
  };

  static int phase(FunctionKind kind) {
    using enum FunctionKind;
    if (kind < kForward) return static_cast<int>(kind) / 2;
    if (kind == kForward) return kPrologues;
    return kPrologues + (kind == kUpdate ? 2 : 1);
  }
  [[noreturn]] void refuse(const Call& call, const std::string& what) const {
    refuse_program(fmt::format("{}: {}", stage_name(number_), to_string(call)), what);
  }
  Lifetime lifetime(ValueId value) const { return stage_.lifetimes[at(value)]; }

  void check_who_assigns(const Function& function, const std::string& place) const {
    if (function.assigns.empty() || function.kind == FunctionKind::kUpdate) return;
    if (function.kind != FunctionKind::kForward || !program_.microbatches_are_batches)
      refuse_program(
          place,
          fmt::format("replaces value {}, expected the update to do so", function.assigns[0].to));
    for (const Assign& assign : function.assigns)
      for (const Input& input : stage_.graph.inputs)
        if (input.value == assign.to && input.kind != InputKind::kBuffer)
          refuse_program(place,
                         fmt::format("replaces {} \"{}\", expected the update to do so",
                                     to_string(input.kind),
                                     input.name));
  }

  // Checks that the last variant does the same in order, plus operations for the whole step.
  void check_variants(FunctionKind each, FunctionKind last) const {
    const auto normal = summaries_.find(each), more = summaries_.find(last);
    if (normal == summaries_.end() || more == summaries_.end()) return;
    const std::string place =
        fmt::format("{}: {} of the last micro-batch", stage_name(number_), function_name(last));
    const std::vector<Item> items = items_of(normal->second.function->steps);
    size_t next = 0;
    for (const Item& item : items_of(more->second.function->steps)) {
      if (next < items.size() && items[next] == item)
        ++next;
      else if (!is_of_the_step(item))
        refuse_program(
            place, fmt::format("found {}, expected it in other micro-batches, too", name(item)));
    }
    if (next < items.size())
      refuse_program(place,
                     fmt::format("expected {}, which other micro-batches have", name(items[next])));
  }

  bool is_of_the_step(const Item& item) const {
    const auto step = [&](const Values& values) {
      return std::ranges::all_of(values, [&](ValueId value) {
        return value == kNone || lifetime(value) != Lifetime::kMicrobatch;
      });
    };
    if (item.kind == Item::Kind::kOp) {
      const Op& op = stage_.graph.ops[at(item.index)];
      return !accumulates(op) && step(op.results);
    }
    return step(uses(stage_, item)) && step(definitions(stage_, item));
  }

  std::string name(const Item& item) const {
    if (item.kind == Item::Kind::kOp)
      return fmt::format("op {} {}", item.index, stage_.graph.ops[at(item.index)].name);
    return fmt::format("the {} of {}",
                       item.kind == Item::Kind::kPost ? "post" : "wait",
                       stage_.communications[at(item.index)].name);
  }

  // Checks that every micro-batch runs prologues, forward and backward once, each in the order of
  // micro-batches. All prologues come first, one kind after the other, the last variants last, and
  // the update ends the step.
  void check_calls() const {
    using enum FunctionKind;
    const auto microbatches = static_cast<int>(stage_.tables.size());
    struct Kind {
      FunctionKind each, last;
      int next = 0;
      bool ended = false;
    };
    std::vector<Kind> kinds;
    for (int k = 0; k < kPrologues; ++k)
      kinds.push_back({prologue_kind(k, false), prologue_kind(k, true)});
    kinds.push_back({kForward, kForward});
    kinds.push_back({kBackward, kBackwardLast});
    bool updated = false;
    for (const Call& call : stage_.calls) {
      if (!summaries_.contains(call.function)) refuse(call, "the stage has no such function");
      if (!call.begins()) continue;
      if (updated) refuse(call, "found behind the update, expected nothing there");
      if (call.function == kUpdate) {
        updated = true;
        if (call.microbatch != 0) refuse(call, "found another micro-batch, expected 0");
        continue;
      }
      const auto place = at(phase(call.function));
      Kind& kind = kinds[place];
      if (call.microbatch != kind.next)
        refuse(call, fmt::format("found here, expected micro-batch {} before", kind.next));
      ++kind.next;
      kind.ended = kind.next == microbatches;
      const bool has_last = kind.last != kind.each && summaries_.contains(kind.last);
      if (has_last && (call.function == kind.last) != kind.ended)
        refuse(call, "found the variant of another micro-batch: one is for the last only");
      if (kind.next > microbatches)
        refuse(call, "found one more micro-batch than there are tables");
      for (size_t before = 0; before < place; ++before)
        if (exists(kinds[before].each, kinds[before].last) &&
            (before < kPrologues ? !kinds[before].ended : kinds[before].next < kind.next))
          refuse(call, fmt::format("found before {}", function_name(kinds[before].each)));
    }
    for (const Kind& kind : kinds)
      if (exists(kind.each, kind.last) && !kind.ended)
        refuse_program(
            stage_name(number_),
            fmt::format("expected {} {}, found no such call", function_name(kind.each), kind.next));
    if (summaries_.contains(kUpdate) && !updated)
      refuse_program(stage_name(number_), "expected the update, found no such call");
  }
  bool exists(FunctionKind each, FunctionKind last) const {
    return summaries_.contains(each) || summaries_.contains(last);
  }

  void follow_calls() {
    Values batch;
    for (const Input& input : stage_.graph.inputs)
      if (lifetime(input.value) == Lifetime::kMicrobatch) batch.push_back(input.value);
    const int fresh = microbatches_.number({sorted(std::move(batch)), {}});
    const int update = microbatches_.number({{}, {}});
    std::vector<int> at_microbatch(stage_.tables.size(), fresh);
    int step = steps_.number({});
    for (const Call& call : stage_.calls) {
      if (!call.begins()) continue;  // interleaved calls act like consecutive ones
      int own = update;
      int& microbatch =
          call.function == FunctionKind::kUpdate ? own : at_microbatch[at(call.microbatch)];
      const auto [after, is_new] =
          known_.try_emplace({microbatch, step, call.function}, std::pair(0, 0));
      if (is_new) after->second = follow(call, microbatch, step);
      std::tie(microbatch, step) = after->second;
      if (call.function == FunctionKind::kUpdate) check_freed(own);
    }
    for (int microbatch : std::set<int>(at_microbatch.begin(), at_microbatch.end()))
      check_freed(microbatch);
    check_end(steps_[step]);
  }

  // Returns the state after the call.
  std::pair<int, int> follow(const Call& call, int microbatch_number, int step_number) {
    const Summary& summary = summaries_.at(call.function);
    Microbatch microbatch = microbatches_[microbatch_number];
    Step step = steps_[step_number];
    for (const Read& need : summary.needs) check_need(call, need, microbatch, step);
    Values made, made_of_step, freed, freed_of_step;
    for (ValueId value : summary.makes) {
      if (lifetime(value) == Lifetime::kMicrobatch && has(microbatch.alive, value))
        refuse(call, fmt::format("makes value {}, which is there already", value));
      (lifetime(value) == Lifetime::kMicrobatch ? made : made_of_step).push_back(value);
    }
    for (ValueId value : summary.frees)
      (lifetime(value) == Lifetime::kMicrobatch ? freed : freed_of_step).push_back(value);
    microbatch.alive = with(without(microbatch.alive, freed), made);
    microbatch.done.push_back(call.function);
    step.alive = with(without(step.alive, freed_of_step), made_of_step);
    for (int id : summary.awaits)
      if (std::erase(step.posted, id) == 0)
        refuse(call,
               fmt::format("waits for {}, which nobody has posted",
                           stage_.communications[at(id)].name));
    for (int id : summary.posts) {
      if (std::ranges::count(step.posted, id) > 0)
        refuse(call,
               fmt::format("posts {} again, expected a wait before",
                           stage_.communications[at(id)].name));
      step.posted.push_back(id);
    }
    std::ranges::sort(step.posted);
    for (const Assign& assign : summary.function->assigns) step.replaced[assign.to] = call.function;
    return {microbatches_.number(microbatch), steps_.number(step)};
  }

  void check_need(const Call& call,
                  const Read& need,
                  const Microbatch& microbatch,
                  const Step& step) const {
    const auto fail = [&](const std::string& why) {
      refuse(call, fmt::format("{} reads value {}, {}", need.who, need.value, why));
    };
    if (lifetime(need.value) == Lifetime::kRun) {
      const auto replaced = step.replaced.find(need.value);
      if (replaced != step.replaced.end() && replaced->second != call.function)
        fail(fmt::format("which {} has replaced", function_name(replaced->second)));
      if (!has(inputs_, need.value)) fail("which is no input");
      return;
    }
    const bool own = lifetime(need.value) == Lifetime::kMicrobatch;
    if (!has(own ? microbatch.alive : step.alive, need.value)) fail("which is not there");
  }

  void note_kept() {
    kept_ = reported(stage_);
    for (const PlacedValue& gradient : stage_.gradients) kept_.push_back(gradient.input.value);
    for (const Function& function : stage_.functions)
      for (const Assign& assign : function.assigns) kept_.push_back(assign.from);
    kept_ = sorted(std::move(kept_));
    for (const Input& input : stage_.graph.inputs) inputs_.push_back(input.value);
    inputs_ = sorted(std::move(inputs_));
  }

  // Checks that a micro-batch's calls free the values they read, unless a later function reads
  // them, even if only in the last micro-batch.
  void check_freed(int number) const {
    const Microbatch& microbatch = microbatches_[number];
    for (ValueId value : microbatch.alive) {
      if (has(kept_, value)) continue;
      const FunctionKind* last = nullptr;
      for (const FunctionKind& kind : microbatch.done)
        if (has(summaries_.at(kind).reads, value)) last = &kind;
      const bool later = last && std::ranges::any_of(summaries_, [&](const auto& each) {
                           return phase(each.first) > phase(*last) && has(each.second.reads, value);
                         });
      if (last && !later)
        refuse_program(
            stage_name(number_) + ": " + function_name(*last),
            fmt::format("value {}: found never freed, expected its last reader to", value));
    }
  }

  void check_end(const Step& step) const {
    const std::string place = stage_name(number_) + ": end of the step";
    for (int id : step.posted)
      refuse_program(place, stage_.communications[at(id)].name + ": found nobody who waits for it");
    if (stage_.loss != kNone && !has(step.alive, stage_.loss))
      refuse_program(place, fmt::format("the loss, value {}, is not there", stage_.loss));
    for (const auto& [name, value] : stage_.metrics)
      if (!has(step.alive, value))
        refuse_program(place, fmt::format("\"{}\", value {}, is not there", name, value));
    if (stage_.gradient_norm != kNone && !has(step.alive, stage_.gradient_norm))
      refuse_program(
          place, fmt::format("the gradient's norm, value {}, is not there", stage_.gradient_norm));
    for (ValueId value : step.alive) {
      if (has(kept_, value)) continue;
      const FunctionKind* last = nullptr;
      for (const auto& [kind, summary] : summaries_)
        if (has(summary.reads, value)) last = &kind;
      if (!last) refuse_program(place, fmt::format("value {}: found read by nobody", value));
      if (*last == FunctionKind::kBackwardLast || *last == FunctionKind::kUpdate)
        refuse_program(
            stage_name(number_) + ": " + function_name(*last),
            fmt::format("value {}: found never freed, expected its last reader to", value));
    }
  }

  const Program& program_;
  const size_t number_;
  const LoweredStage& stage_;
  std::map<FunctionKind, Summary> summaries_;
  Values kept_, inputs_;  // alive at the end of the step; of the graph
  Interned<Microbatch> microbatches_;
  Interned<Step> steps_;
  // (micro-batch, step, function) -> (micro-batch, step) after that call
  std::map<std::tuple<int, int, FunctionKind>, std::pair<int, int>> known_;
};

}  // namespace

void verify_values(const Program& program, size_t stage) { ValueVerifier(program, stage).run(); }

}  // namespace medley
