// Programs that the verifier must accept, and changes to them that it must refuse.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>
#include <random>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/base/files.h"
#include "medley/graph/passes.h"
#include "medley/graph/text.h"
#include "medley/lower/lower.h"
#include "medley/program/calls.h"
#include "medley/program/symbols_read.h"
#include "medley/testing/example_program.h"
#include "medley/testing/random_plan.h"
#include "medley/testing/seeds.h"

namespace medley {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

Graph read_checked(const std::string& path) {
  return run_passes(parse_graph(LocalFiles().read(path), path));
}

Cluster checked_devices(int count) {
  Cluster cluster;
  cluster.pools = {{"a", count, 1, {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  return cluster;
}

std::vector<std::string> names(const Cluster& cluster) {
  std::vector<std::string> all;
  for (const auto& device : cluster.devices) all.push_back(device.name);
  return all;
}

// Returns meshes, pipelines and several of them, of two models, one with tied weights.
std::vector<Program> random_programs(int seeds) {
  const Cluster cluster = checked_devices(4);
  std::vector<Program> programs;
  for (const char* path : {"tests/data/mlp.graph", "python/tests/golden/gpt.graph"}) {
    const Graph graph = read_checked(path);
    for (int seed = 0; seed < seeds; ++seed) {
      const auto number = static_cast<uint64_t>(seed);
      programs.push_back(lower(graph, random_plan(graph, names(cluster), 12, number), cluster, {}));
      programs.push_back(
          lower(graph, random_pipeline(graph, names(cluster), 12, number), cluster, {}));
      programs.push_back(
          lower(graph, random_pipelines(graph, names(cluster), 12, number), cluster, {}));
    }
  }
  return programs;
}

std::string refusal_of(const Program& program) {
  try {
    verify(program);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

class Mutator {
 public:
  Mutator(Program& program, uint64_t seed) : program_(program), random_(seed) {}

  LoweredStage& stage() { return program_.stages[draw(program_.stages.size())]; }
  size_t draw(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
  template <typename T>
  T& any(std::vector<T>& all) {
    return all[draw(all.size())];
  }
  Program& program() { return program_; }

 private:
  Program& program_;
  std::mt19937_64 random_;
};

// Makes one change that breaks the program. Returns its description, "" if it does not apply.
using Change = std::string (*)(Mutator&);

bool is_called(const LoweredStage& stage, const Function& function) {
  return std::ranges::any_of(stage.calls,
                             [&](const Call& call) { return call.function == function.kind; });
}

template <typename Kind>
std::vector<std::pair<Function*, size_t>> steps_of(LoweredStage& stage) {
  std::vector<std::pair<Function*, size_t>> found;
  for (Function& function : stage.functions)
    for (size_t i = 0; is_called(stage, function) && i < function.steps.size(); ++i)
      if (std::holds_alternative<Kind>(function.steps[i])) found.emplace_back(&function, i);
  return found;
}
template <typename Kind>
std::string drop_step(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  auto all = steps_of<Kind>(stage);
  if (all.empty()) return "";
  const auto [function, i] = mutator.any(all);
  const int id = std::get<Kind>(function->steps[i]).communication;
  function->steps.erase(function->steps.begin() + static_cast<std::ptrdiff_t>(i));
  return "a post or wait of " + stage.communications[at(id)].name;
}

// A segment with that many ops, and one of them.
struct Chosen {
  Segment* segment = nullptr;
  size_t op = 0;
};
Chosen choose_op(Mutator& mutator, LoweredStage& stage, size_t ops) {
  std::vector<Segment*> all;
  for (auto [function, i] : steps_of<Segment>(stage))
    if (auto& segment = std::get<Segment>(function->steps[i]); segment.ops.size() >= ops)
      all.push_back(&segment);
  if (all.empty()) return {};
  Segment* segment = mutator.any(all);
  return {segment, mutator.draw(segment->ops.size())};
}

std::string drop_op(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  const auto [segment, op] = choose_op(mutator, stage, 1);
  if (!segment) return "";
  const std::string name = stage.graph.ops[at(segment->ops[op])].name;
  segment->ops.erase(segment->ops.begin() + static_cast<std::ptrdiff_t>(op));
  segment->dies.erase(segment->dies.begin() + static_cast<std::ptrdiff_t>(op));
  return name;
}

std::string repeat_op(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  const auto [segment, op] = choose_op(mutator, stage, 1);
  if (!segment) return "";
  segment->ops.push_back(segment->ops[op]);
  segment->dies.emplace_back();
  return stage.graph.ops[at(segment->ops[op])].name;
}

std::string swap_maker_and_reader(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  const auto [segment, op] = choose_op(mutator, stage, 2);
  if (!segment || op + 1 == segment->ops.size()) return "";
  const std::vector<ValueId> read = operands(stage.graph.ops[at(segment->ops[op + 1])]);
  const bool reads =
      std::ranges::any_of(stage.graph.ops[at(segment->ops[op])].results,
                          [&](ValueId v) { return v != kNone && std::ranges::count(read, v) > 0; });
  if (!reads) return "";
  std::swap(segment->ops[op], segment->ops[op + 1]);
  return "swapped";
}

// Drops the death of a read value, except gradients, which may stay.
std::string drop_death(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  const auto [segment, op] = choose_op(mutator, stage, 1);
  if (!segment || segment->dies[op].empty()) return "";
  const ValueId value = segment->dies[op].back();
  const bool gradient = std::ranges::any_of(
      stage.gradients, [&](const PlacedValue& each) { return each.input.value == value; });
  const std::vector<ValueId> read = operands(stage.graph.ops[at(segment->ops[op])]);
  if (gradient || std::ranges::count(read, value) == 0) return "";
  segment->dies[op].pop_back();
  return fmt::format("value {}", value);
}

std::string move_death(Mutator& mutator) {
  const auto [segment, op] = choose_op(mutator, mutator.stage(), 2);
  if (!segment || segment->dies[op].empty()) return "";
  const size_t to = mutator.draw(segment->ops.size());
  if (to == op) return "";
  segment->dies[to].push_back(segment->dies[op].back());
  segment->dies[op].pop_back();
  return fmt::format("value {}", segment->dies[to].back());
}

// Moves the first of two sends on a lane behind the second.
std::string swap_sends(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  for (auto [function, i] : steps_of<Post>(stage))
    for (auto [other, j] : steps_of<Post>(stage)) {
      if (function != other || i >= j) continue;
      const auto begin = function->steps.begin();
      const auto of = [&](size_t step) -> const Communication& {
        return stage.communications[at(std::get<Post>(function->steps[step]).communication)];
      };
      if (of(i).lane < 0 || of(i).lane != of(j).lane) continue;
      std::string what = of(i).name + " behind " + of(j).name;
      const auto first = begin + static_cast<std::ptrdiff_t>(i);
      std::rotate(first, first + 1, begin + static_cast<std::ptrdiff_t>(j) + 1);
      return what;
    }
  return "";
}

// Returns a communication of several devices.
Communication* choose_communication(Mutator& mutator, LoweredStage& stage) {
  std::vector<Communication*> all;
  for (Communication& communication : stage.communications)
    if (!communication.devices.empty() || along(stage.mesh, communication.axis).count > 1)
      all.push_back(&communication);
  return all.empty() ? nullptr : mutator.any(all);
}

std::string change_length(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  Communication* communication = choose_communication(mutator, stage);
  if (!communication) return "";
  std::vector<Size>& sizes = mutator.draw(2) ? communication->send : communication->receive;
  if (sizes.empty()) return "";
  Size& size = mutator.any(sizes);
  size = Size(evaluate(size, stage.tables[0][0]) + 1);
  return communication->name;
}

// Changes a number that a communication reads in all micro-batches.
std::string change_table(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  Communication* communication = choose_communication(mutator, stage);
  if (!communication) return "";
  std::vector<Symbol> symbols;
  for (const auto* sizes : {&communication->send, &communication->receive})
    for (const Size& size : *sizes)
      symbols.insert(symbols.end(), size.symbols.begin(), size.symbols.end());
  if (symbols.empty()) return "";
  const bool lane = communication->lane >= 0;
  bool always = !lane;
  for (const Function& function : stage.functions)
    if (lane &&
        (function.kind == FunctionKind::kForward || function.kind == FunctionKind::kBackward))
      for (const Step& step : function.steps) {
        const auto* post = std::get_if<Post>(&step);
        const auto* wait = std::get_if<Wait>(&step);
        const int id = post ? post->communication : wait ? wait->communication : -1;
        always = always || (id >= 0 && &stage.communications[at(id)] == communication);
      }
  if (!always) return "";
  const size_t m = mutator.draw(stage.tables.size());
  const size_t device = mutator.draw(stage.devices.size());
  const Symbol symbol = mutator.any(symbols);
  // As a factor of zero it has no effect.
  const std::vector<int64_t> before = stage.tables[m][device];
  stage.tables[m][device][at(symbol)] += 1;
  for (const auto* sizes : {&communication->send, &communication->receive})
    for (const Size& size : *sizes)
      if (evaluate(size, before) != evaluate(size, stage.tables[m][device]))
        return communication->name;
  stage.tables[m][device] = before;
  return "";
}

std::string change_rows(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  auto& table = mutator.any(stage.tables);
  std::vector<Size> rows{SymbolTable::rows(), SymbolTable::batch(), SymbolTable::first_row()};
  ++mutator.any(table)[at(mutator.any(rows).symbols[0])];
  return "rows";
}

std::string change_dtype(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  Communication* communication = choose_communication(mutator, stage);
  if (!communication || communication->outputs.empty()) return "";
  stage.graph.values[at(communication->outputs[0])].type.dtype = DType::kI8;
  return communication->name;
}

template <typename Change>
std::string change_between_stages(Mutator& mutator, Change change) {
  std::vector<Communication*> all;
  LoweredStage& stage = mutator.stage();
  for (Communication& communication : stage.communications)
    if (communication.devices.size() > stage.devices.size()) all.push_back(&communication);
  if (all.empty()) return "";
  Communication* communication = mutator.any(all);
  return change(*communication) ? communication->name : "";
}

std::string rename(Mutator& mutator) {
  return change_between_stages(mutator, [](Communication& c) {
    c.name += " of others";
    return true;
  });
}
std::string remove_member(Mutator& mutator) {
  return change_between_stages(mutator, [&](Communication& c) {
    const auto i = static_cast<std::ptrdiff_t>(mutator.draw(c.devices.size()));
    c.devices.erase(c.devices.begin() + i);
    if (c.kind != CommunicationKind::kTransfer) return true;
    c.send.erase(c.send.begin() + i);
    c.receive.erase(c.receive.begin() + i);
    return true;
  });
}
// Changes one stage, or all with the gradient sync.
std::string change_cells(Mutator& mutator, bool everywhere) {
  std::vector<std::shared_ptr<const GradientSync>> syncs;
  for (const Communication& communication : mutator.stage().communications)
    if (communication.sync && !communication.sync->tensors[0]->empty())
      syncs.push_back(communication.sync);
  if (syncs.empty()) return "";
  const std::shared_ptr<const GradientSync> old = mutator.any(syncs);
  GradientSync changed = *old;
  const size_t t = mutator.draw(changed.tensors.size());
  SyncTensor tensor = *changed.tensors[t];
  if (tensor.empty()) return "";
  SyncCell& cell = mutator.any(tensor);
  SyncEnd& end = mutator.any(mutator.draw(2) ? cell.from : cell.to);
  const size_t what = mutator.draw(3);
  if (what == 0) ++cell.length;
  if (what == 1) ++end.runs.start;
  if (what == 2) ++end.runs.length;
  changed.tensors[t] = std::make_shared<const SyncTensor>(std::move(tensor));
  const auto fresh = std::make_shared<const GradientSync>(std::move(changed));
  for (LoweredStage& stage : mutator.program().stages)
    for (Communication& communication : stage.communications)
      if (communication.sync == old) {
        communication.sync = fresh;
        if (!everywhere) return communication.name;
      }
  return "cells";
}
std::string change_cells_of_one(Mutator& mutator) { return change_cells(mutator, false); }
std::string change_cells_of_all(Mutator& mutator) { return change_cells(mutator, true); }
std::string swap_gradient_syncs(Mutator& mutator) {
  std::vector<Communication*> all;
  for (Communication& communication : mutator.stage().communications)
    if (communication.sync) all.push_back(&communication);
  if (all.size() < 2) return "";
  std::swap(*all[0], *all[1]);
  return all[0]->name;
}
std::string remove_end(Mutator& mutator) {
  std::vector<std::shared_ptr<const GradientSync>> syncs;
  for (const Communication& communication : mutator.stage().communications)
    if (communication.sync && !communication.sync->tensors[0]->empty())
      syncs.push_back(communication.sync);
  if (syncs.empty()) return "";
  const std::shared_ptr<const GradientSync> old = mutator.any(syncs);
  GradientSync changed = *old;
  SyncTensor tensor = *changed.tensors[0];
  std::vector<SyncEnd>& ends = mutator.draw(2) ? tensor[0].from : tensor[0].to;
  ends.erase(ends.begin() + static_cast<std::ptrdiff_t>(mutator.draw(ends.size())));
  changed.tensors[0] = std::make_shared<const SyncTensor>(std::move(tensor));
  const auto fresh = std::make_shared<const GradientSync>(std::move(changed));
  for (LoweredStage& stage : mutator.program().stages)
    for (Communication& communication : stage.communications)
      if (communication.sync == old) communication.sync = fresh;
  return "an end";
}

// Posts values that a stage only receives, so that no other check applies.
std::string post_values_early(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  for (Function& function : stage.functions) {
    if (function.kind != FunctionKind::kUpdate) continue;
    for (size_t i = 1; i < function.steps.size(); ++i) {
      const auto* post = std::get_if<Post>(&function.steps[i]);
      if (!post) continue;
      const Communication& values = stage.communications[at(post->communication)];
      if (!values.sync || values.sync->of != GradientSync::Of::kNewValues || !values.inputs.empty())
        continue;
      const bool waits =
          std::any_of(function.steps.begin(),
                      function.steps.begin() + static_cast<std::ptrdiff_t>(i),
                      [](const Step& step) { return std::holds_alternative<Wait>(step); });
      if (!waits) return "";
      std::rotate(function.steps.begin(),
                  function.steps.begin() + static_cast<std::ptrdiff_t>(i),
                  function.steps.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return values.name;
    }
  }
  return "";
}
std::string renumber_pipeline(Mutator& mutator) {
  ++mutator.stage().pipeline;
  return "a pipeline";
}

std::string change_depth(Mutator& mutator) {
  return change_between_stages(mutator, [](Communication& c) {
    ++c.depth;
    return c.lane >= 0;
  });
}
std::string change_lane(Mutator& mutator) {
  return change_between_stages(mutator, [](Communication& c) {
    if (c.lane < 0) return false;
    c.lane += 1000;
    return true;
  });
}

// Moves it from the update to another function.
std::string move_assign(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  Function& to = mutator.any(stage.functions);
  for (Function& from : stage.functions) {
    if (from.assigns.empty() || &from == &to) continue;
    to.assigns.push_back(from.assigns.back());
    from.assigns.pop_back();
    return function_name(to.kind);
  }
  return "";
}
std::string drop_assign(Mutator& mutator) {
  for (Function& function : mutator.stage().functions) {
    if (function.assigns.empty()) continue;
    const size_t i = mutator.draw(function.assigns.size());
    function.assigns.erase(function.assigns.begin() + static_cast<std::ptrdiff_t>(i));
    return "an assignment";
  }
  return "";
}
std::string repeat_assign(Mutator& mutator) {
  for (Function& function : mutator.stage().functions) {
    if (function.assigns.size() < 2) continue;
    function.assigns[0].to = function.assigns[1].to;
    return "an assignment";
  }
  return "";
}

std::string drop_call(Mutator& mutator) {
  std::vector<Call>& calls = mutator.stage().calls;
  const size_t i = mutator.draw(calls.size());
  const std::string name = to_string(calls[i]);
  calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(i));
  return name;
}
std::string repeat_call(Mutator& mutator) {
  std::vector<Call>& calls = mutator.stage().calls;
  const Call call = mutator.any(calls);
  calls.insert(calls.begin() + static_cast<std::ptrdiff_t>(mutator.draw(calls.size() + 1)), call);
  return to_string(call);
}
std::string renumber_call(Mutator& mutator) {
  LoweredStage& stage = mutator.stage();
  Call& call = mutator.any(stage.calls);
  ++call.microbatch;
  return to_string(call);
}
// Swaps two calls of one micro-batch, or of one function.
std::string swap_calls(Mutator& mutator) {
  std::vector<Call>& calls = mutator.stage().calls;
  const size_t i = mutator.draw(calls.size()), j = mutator.draw(calls.size());
  Call &a = calls[i], &b = calls[j];
  if (i == j || (a.microbatch != b.microbatch && a.function != b.function)) return "";
  std::swap(a, b);
  return to_string(a) + " and " + to_string(b);
}
std::string take_other_variant(Mutator& mutator) {
  using enum FunctionKind;
  Call& call = mutator.any(mutator.stage().calls);
  if (call.function != kBackward && call.function != kBackwardLast) return "";
  call.function = call.function == kBackward ? kBackwardLast : kBackward;
  return to_string(call);
}

// Makes a stage before the last wait for each gradient while the last one waits for all
// activations.
std::string order_into_deadlock(Mutator& mutator) {
  using enum FunctionKind;
  std::vector<LoweredStage>& stages = mutator.program().stages;
  const size_t microbatches = stages[0].tables.size();
  if (stages.size() < 2 || microbatches < 2 || stages.back().pipeline > 0) return "";
  for (LoweredStage* stage : {&stages[0], &stages.back()}) {
    std::vector<Call> others, forward, backward;
    for (const Call& call : stage->calls)
      (call.function == kForward                                      ? forward
       : call.function == kBackward || call.function == kBackwardLast ? backward
                                                                      : others)
          .push_back(call);
    if (forward.size() != microbatches || backward.size() != microbatches) return "";
    std::vector<Call> order;
    for (const Call& call : others)
      if (call.function != kUpdate) order.push_back(call);
    if (stage == &stages[0]) {
      for (size_t m = 0; m < microbatches; ++m)
        order.insert(order.end(), {forward[m], backward[m]});
    } else {
      order.insert(order.end(), forward.begin(), forward.end());
      order.insert(order.end(), backward.begin(), backward.end());
    }
    for (const Call& call : others)
      if (call.function == kUpdate) order.push_back(call);
    stage->calls = order;
  }
  return "a deadlock";
}

std::string take_device_of_others(Mutator& mutator) {
  std::vector<LoweredStage>& stages = mutator.program().stages;
  if (stages.size() < 2) return "";
  stages[0].devices[0] = stages[1].devices[0];
  return "a device";
}

const std::vector<std::pair<std::string, Change>> kChanges{
    {"a post dropped", drop_step<Post>},
    {"a wait dropped", drop_step<Wait>},
    {"an op dropped", drop_op},
    {"an op repeated", repeat_op},
    {"ops swapped", swap_maker_and_reader},
    {"a value not freed", drop_death},
    {"a value freed elsewhere", move_death},
    {"sends swapped", swap_sends},
    {"a length", change_length},
    {"a table", change_table},
    {"rows", change_rows},
    {"a dtype", change_dtype},
    {"a name", rename},
    {"a member removed", remove_member},
    {"cells of one stage", change_cells_of_one},
    {"cells of all stages", change_cells_of_all},
    {"gradient syncs swapped", swap_gradient_syncs},
    {"an end of a cell", remove_end},
    {"new values early", post_values_early},
    {"a pipeline", renumber_pipeline},
    {"a depth", change_depth},
    {"a lane", change_lane},
    {"an assignment moved", move_assign},
    {"an assignment dropped", drop_assign},
    {"an assignment repeated", repeat_assign},
    {"a call dropped", drop_call},
    {"a call repeated", repeat_call},
    {"a call renumbered", renumber_call},
    {"calls swapped", swap_calls},
    {"the other variant", take_other_variant},
    {"a deadlock", order_into_deadlock},
    {"a device", take_device_of_others},
};

TEST(Verify, RefusesAThousandRandomChanges) {
  const uint64_t wanted = seeds_of(40);  // per change
  const std::vector<Program> programs = random_programs(10);
  std::mt19937_64 random(0);
  for (const auto& [name, change] : kChanges)
    for (uint64_t changes = 0; changes < wanted;) {
      Program program = programs[random() % programs.size()];
      Mutator mutator(program, random());
      const std::string what = change(mutator);
      if (what.empty()) continue;
      ++changes;
      EXPECT_THAT(refusal_of(program), StartsWith("program: stage ")) << name << ": " << what;
    }
  EXPECT_EQ(kChanges.size(), 32u);
}

TEST(Verify, AcceptsProgramsMadeByHand) {
  EXPECT_EQ(refusal_of(data_parallel_program({3, 1}, 4).program), "accepted");
  EXPECT_EQ(refusal_of(chain_program(12, 3).program), "accepted");
}

// Errors name the place and the expectation.
TEST(Verify, NamesThePlace) {
  Program program = data_parallel_program({3, 1}, 2).program;
  program.stages[0].communications[0].receive[1] = Size(5);
  EXPECT_EQ(refusal_of(program),
            "program: stage 0: gather h: device 0: elements received: found 16, expected 17");
  program = data_parallel_program({3, 1}, 2).program;
  std::swap(program.stages[0].calls[0], program.stages[0].calls[1]);
  EXPECT_EQ(refusal_of(program),
            "program: stage 0: forward 1: found here, expected micro-batch 0 before");
}

}  // namespace
}  // namespace medley
