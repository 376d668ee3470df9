#include "medley/testing/example_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "medley/base/at.h"

namespace medley {
namespace {

// A stage that grows value by value.
struct ProgramBuilder {
  LoweredStage stage;

  void set_lifetime(ValueId value, Lifetime lifetime) {
    stage.lifetimes.resize(stage.graph.values.size(), Lifetime::kMicrobatch);
    stage.lifetimes[at(value)] = lifetime;
  }
  ValueId input(InputKind kind, std::string name, TensorType type) {
    const ValueId value = add_input(stage.graph, kind, std::move(name), std::move(type));
    set_lifetime(value, kind == InputKind::kBatch ? Lifetime::kMicrobatch : Lifetime::kRun);
    stage.inputs.push_back({stage.graph.inputs.back(), {}, {}, {}});
    return value;
  }
  OpId op(std::string name, const std::vector<ValueId>& operands, TensorType type, Lifetime life) {
    Op op;
    op.name = std::move(name);
    for (ValueId value : operands) op.arguments.emplace_back(ValueArgument{value});
    set_lifetime(add_op(stage.graph, std::move(op), {std::move(type)}).front(), life);
    return static_cast<OpId>(stage.graph.ops.size()) - 1;
  }
  ValueId result(OpId op) const { return stage.graph.ops[at(op)].results[0]; }
  // Returns a value that a communication gives.
  ValueId received(TensorType type, Lifetime lifetime) {
    stage.graph.values.push_back({std::move(type), kNone, 0});
    const auto value = static_cast<ValueId>(stage.graph.values.size()) - 1;
    set_lifetime(value, lifetime);
    return value;
  }
};

TensorType f32(std::vector<Size> shape) { return {DType::kF32, std::move(shape)}; }

Program program_of(LoweredStage stage) {
  Program program;
  program.graph_hash = "example graph";
  program.plan_hash = "example plan";
  program.stages.push_back(std::move(stage));
  return program;
}

// Symbols: own rows, all rows, then the rows of every device.
void set_tables(LoweredStage& stage, const std::vector<int64_t>& rows, int microbatches) {
  stage.graph.symbols = {"b", "n"};
  std::vector<std::vector<int64_t>> table;
  for (size_t device = 0; device < rows.size(); ++device) {
    stage.devices.push_back(static_cast<int>(device));
    stage.graph.symbols.push_back(fmt::format("b{}", device));
    table.push_back({rows[device], std::accumulate(rows.begin(), rows.end(), int64_t{0})});
    table.back().insert(table.back().end(), rows.begin(), rows.end());
  }
  stage.mesh = {static_cast<int64_t>(rows.size())};
  stage.tables.assign(at(microbatches), table);
}

}  // namespace

ExampleProgram data_parallel_program(const std::vector<int64_t>& rows, int microbatches) {
  ProgramBuilder builder;
  LoweredStage& stage = builder.stage;
  set_tables(stage, rows, microbatches);
  const TensorType weight = f32({4}), local = f32({Size::of(0), 4}), whole = f32({Size::of(1), 4});
  const ValueId w = builder.input(InputKind::kParameter, "w", weight);
  const ValueId x = builder.input(InputKind::kBatch, "x", local);

  const OpId scale = builder.op("test.scale", {x, w}, local, Lifetime::kMicrobatch);
  const ValueId h = builder.result(scale), g = builder.received(whole, Lifetime::kMicrobatch);
  const OpId loss = builder.op("test.loss", {g}, f32({}), Lifetime::kMicrobatch);
  const OpId losses =
      builder.op("medley.accumulate", {builder.result(loss)}, f32({}), Lifetime::kStep);
  const OpId gradient = builder.op("test.gradient", {g, h}, weight, Lifetime::kMicrobatch);
  const OpId sum =
      builder.op("medley.accumulate", {builder.result(gradient)}, weight, Lifetime::kStep);
  const ValueId synced = builder.received(weight, Lifetime::kStep);
  const OpId norm = builder.op("test.norm", {synced}, f32({}), Lifetime::kStep);
  const OpId update = builder.op("test.update", {w, synced}, weight, Lifetime::kMicrobatch);

  Communication gather{
      CommunicationKind::kAllGather, Reduce::kSum, 0, {h}, {g}, {}, {}, "gather h"};
  for (size_t device = 0; device < rows.size(); ++device)
    gather.receive.push_back(Size::of(static_cast<Symbol>(2 + device)) * Size(4));
  stage.communications = {gather,
                          {CommunicationKind::kAllReduce,
                           Reduce::kSum,
                           0,
                           {builder.result(sum)},
                           {synced},
                           {},
                           {},
                           "reduce w"}};

  const Segment backward{{gradient, sum}, {{g, h}, {builder.result(gradient)}}};
  stage.functions = {
      {FunctionKind::kForward,
       {Segment{{scale}, {{x}}},
        Post{0, {}},
        Wait{0},
        Segment{{loss, losses}, {{}, {builder.result(loss)}}}},
       {}},
      {FunctionKind::kBackward, {backward}, {}},
      {FunctionKind::kBackwardLast, {backward, Post{1, {builder.result(sum)}}}, {}},
      {FunctionKind::kUpdate,
       {Wait{1}, Segment{{norm, update}, {{}, {}}}},
       {{builder.result(update), w}}},
  };
  // 1F1B of the last of two stages, so that frames are reused.
  for (int i = 0; i < microbatches; ++i) {
    stage.calls.push_back({FunctionKind::kForward, i});
    if (i > 0) stage.calls.push_back({FunctionKind::kBackward, i - 1});
  }
  stage.calls.push_back({FunctionKind::kBackwardLast, microbatches - 1});
  stage.calls.push_back({FunctionKind::kUpdate, 0});
  stage.loss = builder.result(losses);
  stage.gradient_norm = builder.result(norm);
  PlacedValue placed;
  placed.input = {InputKind::kParameter, "w", synced};
  stage.gradients = {placed};
  const ValueId loss_value = stage.loss, norm_value = stage.gradient_norm;
  return {program_of(std::move(stage)), w, x, loss_value, norm_value, synced};
}

ExampleProgram chain_program(int num_ops, int segment_ops) {
  ProgramBuilder builder;
  set_tables(builder.stage, {1}, 1);
  const ValueId x = builder.input(InputKind::kBatch, "x", f32({4}));
  Function forward{FunctionKind::kForward, {}, {}};
  ValueId last = x;
  for (int i = 0; i < num_ops; i += segment_ops) {
    Segment segment;
    for (int j = i; j < std::min(num_ops, i + segment_ops); ++j) {
      segment.ops.push_back(builder.op("test.op", {last}, f32({4}), Lifetime::kMicrobatch));
      segment.dies.push_back({last});
      last = builder.result(segment.ops.back());
    }
    forward.steps.emplace_back(std::move(segment));
    if (i + segment_ops >= num_ops) break;
    const ValueId next = builder.received(f32({4}), Lifetime::kMicrobatch);
    const auto communication = static_cast<int>(builder.stage.communications.size());
    builder.stage.communications.push_back(
        {CommunicationKind::kAllReduce, Reduce::kSum, 0, {last}, {next}, {}, {}, "reduce"});
    forward.steps.emplace_back(Post{communication, {last}});
    forward.steps.emplace_back(Wait{communication});
    last = next;
  }
  builder.stage.functions = {forward};
  builder.stage.calls = {{FunctionKind::kForward, 0}};
  return {program_of(std::move(builder.stage)), kNone, x, kNone, kNone, kNone};
}

}  // namespace medley
