#include "medley/executor/update_program.h"

#include <ATen/ops/scalar_tensor.h>

#include "medley/base/at.h"
#include "medley/graph/text.h"
#include "medley/kernels/update_parts.h"

namespace medley {
namespace {

bool has_symbols(const Graph& graph) {
  for (const Input& input : graph.inputs)
    for (const Size& size : graph.values[at(input.value)].type.shape)
      if (!size.is_constant()) return true;
  return false;
}

std::vector<std::string> scalars_in(const Graph& graph) {
  std::vector<std::string> names;
  for (const Input& input : graph.inputs)
    if (input.kind == InputKind::kScalar) names.push_back("scalar:" + input.name);
  return names;
}

}  // namespace

UpdateProgram::Runner::Runner(Graph program, int64_t elements, c10::Device device)
    : is_flat(has_symbols(program)),
      scalars(scalars_in(program)),
      graph(std::move(program), {elements}, device) {}

void UpdateProgram::operator()(std::vector<Updated>& parameters, const UpdateNow& now) {
  std::vector<double> numbers{now.learning_rate, now.step};
  numbers.insert(numbers.end(), now.numbers.begin(), now.numbers.end());
  for (Updated& each : parameters) {
    if (each.parameter.numel() == 0) continue;
    at::Tensor& into = prepare_update(each, now);
    std::unique_ptr<Runner>& runner = runners_[into.numel()];
    if (!runner)
      runner =
          std::make_unique<Runner>(parse_graph(text_, "optimizer"), into.numel(), into.device());
    const auto given = [&](const at::Tensor& tensor) {
      return runner->is_flat ? tensor.reshape({-1}) : tensor;
    };
    std::map<std::string, at::Tensor> inputs{{"parameter:x", given(into)},
                                             {"batch:grad", given(each.gradient)}};
    for (size_t i = 0; i < runner->scalars.size(); ++i)
      inputs[runner->scalars[i]] =
          at::scalar_tensor(numbers.at(i), into.options().dtype(at::kDouble));
    for (size_t i = 0; i < each.states.size(); ++i)
      inputs["state:" + std::to_string(i)] = given(each.states[i]);
    const std::map<std::string, at::Tensor> outputs = runner->graph.run(inputs);
    runner->graph.forget();
    const auto take = [&](at::Tensor& to, const std::string& name) {
      to = outputs.at(name).view(to.sizes().vec());
    };
    take(into, "parameter:x");
    for (size_t i = 0; i < each.states.size(); ++i)
      take(each.states[i], "state:" + std::to_string(i));
    copy_master(each);
  }
}

}  // namespace medley
