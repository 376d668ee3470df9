#include "medley/executor/graph_runner.h"

#include <fmt/format.h>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/executor/aten_executor.h"
#include "medley/kernels/tensor_buffer.h"

namespace medley {
namespace {

std::string name_of(const Output& output) {
  const std::string kind = to_string(output.kind);
  return output.name.empty() ? kind : kind + ":" + output.name;
}

// Returns the input that an output replaces with a new value.
const Input* replaced_input(const Graph& graph, const Output& output) {
  for (const Input& input : graph.inputs) {
    const bool same =
        (output.kind == OutputKind::kBuffer && input.kind == InputKind::kBuffer) ||
        (output.kind == OutputKind::kParameter && input.kind == InputKind::kParameter) ||
        (output.kind == OutputKind::kState && input.kind == InputKind::kState);
    if (same && input.name == output.name) return &input;
  }
  return nullptr;
}

// Puts all ops in one segment. Inputs and results of watched ops stay; all else dies at its last
// use.
Function one_function(const Graph& graph, const std::set<OpId>& watched) {
  Function function{FunctionKind::kUpdate, {}, {}};
  std::set<ValueId> kept;
  for (const Input& input : graph.inputs) kept.insert(input.value);
  for (OpId op : watched)
    kept.insert(graph.ops.at(at(op)).results.begin(), graph.ops.at(at(op)).results.end());
  for (const Output& output : graph.outputs) {
    kept.insert(output.value);
    if (const Input* input = replaced_input(graph, output))
      function.assigns.push_back({output.value, input->value});
  }
  Segment segment;
  segment.dies.resize(graph.ops.size());
  for (size_t i = 0; i < graph.ops.size(); ++i) segment.ops.push_back(static_cast<OpId>(i));
  for (size_t i = graph.ops.size(); i-- > 0;) {
    std::vector<ValueId> used = operands(graph.ops[i]);
    used.insert(used.end(), graph.ops[i].results.begin(), graph.ops[i].results.end());
    for (ValueId value : used)
      if (value != kNone && kept.insert(value).second) segment.dies[i].push_back(value);
  }
  function.steps.emplace_back(std::move(segment));
  return function;
}

}  // namespace

GraphRunner::GraphRunner(Graph graph,
                         std::vector<int64_t> symbols,
                         c10::Device device,
                         std::set<OpId> watched)
    : symbols_(std::move(symbols)),
      watched_(std::move(watched)),
      executor_(make_aten_executor(device)) {
  if (symbols_.size() != graph.symbols.size())
    throw Error(Blame::kCaller,
                fmt::format("graph {} has {} symbols; values given: {}",
                            graph.name,
                            graph.symbols.size(),
                            symbols_.size()));
  stage_.lifetimes.assign(graph.values.size(), Lifetime::kMicrobatch);
  for (const Input& input : graph.inputs) stage_.lifetimes[at(input.value)] = Lifetime::kRun;
  stage_.functions.push_back(one_function(graph, watched_));
  stage_.graph = std::move(graph);
  run_frame_ = executor_->make_frame(stage_);
  microbatch_frame_ = executor_->make_frame(stage_);
  segment_ = executor_->prepare(stage_, std::get<Segment>(stage_.functions[0].steps[0]), symbols_);
}

ValueId GraphRunner::find_input(const std::string& name) const {
  for (const Input& input : stage_.graph.inputs)
    if (to_string(input.kind) + ":" + input.name == name) return input.value;
  throw Error(Blame::kCaller, fmt::format("graph {} has no input {}", stage_.graph.name, name));
}

void GraphRunner::forget() {
  for (const Input& input : stage_.graph.inputs)
    executor_->write(stage_, {run_frame_.get(), microbatch_frame_.get()}, input.value, nullptr);
}

std::map<std::string, at::Tensor> GraphRunner::run(const std::map<std::string, at::Tensor>& inputs,
                                                   const std::set<std::string>& wanted) {
  const Frames frames{run_frame_.get(), microbatch_frame_.get()};
  for (const auto& [name, tensor] : inputs)
    executor_->write(stage_, frames, find_input(name), to_buffer(tensor.detach()));
  executor_->run(*segment_, frames);
  std::map<std::string, at::Tensor> outputs;
  // Reads all before any write: a buffer may become another one.
  std::vector<std::pair<ValueId, Buffer>> replaced;
  for (const Output& output : stage_.graph.outputs) {
    Buffer buffer = executor_->read(stage_, frames, output.value);
    if (const Input* input = replaced_input(stage_.graph, output))
      replaced.emplace_back(input->value, buffer);
    const std::string name = name_of(output);
    if (wanted.empty() || wanted.contains(name)) outputs[name] = to_tensor(buffer);
  }
  for (auto& [value, buffer] : replaced) executor_->write(stage_, frames, value, std::move(buffer));
  for (OpId op : watched_) {
    const std::vector<ValueId>& results = stage_.graph.ops[at(op)].results;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] == kNone) continue;
      outputs[fmt::format("op:{}:{}", op, i)] =
          to_tensor(executor_->read(stage_, frames, results[i]));
      executor_->write(stage_, frames, results[i], nullptr);
    }
  }
  for (const Output& output : stage_.graph.outputs)
    if (stage_.lifetimes[at(output.value)] == Lifetime::kMicrobatch)
      executor_->write(stage_, frames, output.value, nullptr);
  return outputs;
}

}  // namespace medley
