#include "medley/torch/update_program.h"

#include <ATen/ops/scalar_tensor.h>

#include "medley/graph/text.h"
#include "medley/torch/update_parts.h"

namespace medley {

void UpdateProgram::operator()(std::vector<Updated>& parameters, const at::Tensor& scalars) {
  const UpdateScalars now = read_scalars(scalars);
  if (now.skips()) return;
  const auto number = [&](double value, const at::Tensor& like) {
    return at::scalar_tensor(value, like.options().dtype(at::kDouble));
  };
  for (Updated& each : parameters) {
    if (each.parameter.numel() == 0) continue;
    at::Tensor& into = prepare_update(each, now);
    std::map<std::string, at::Tensor> inputs{{"parameter:x", into.view({-1})},
                                             {"batch:grad", each.gradient.reshape({-1})},
                                             {"scalar:lr", number(now.learning_rate, into)},
                                             {"scalar:step", number(now.step, into)}};
    for (size_t i = 0; i < each.states.size(); ++i)
      inputs["state:" + std::to_string(i)] = each.states[i].view({-1});
    std::unique_ptr<GraphRunner>& runner = runners_[into.numel()];
    if (!runner)
      runner = std::make_unique<GraphRunner>(
          parse_graph(text_, "optimizer"), std::vector<int64_t>{into.numel()}, into.device());
    const std::map<std::string, at::Tensor> outputs = runner->run(inputs);
    runner->forget();
    const auto sizes = into.sizes().vec();
    into = outputs.at("parameter:x").view(sizes);
    for (size_t i = 0; i < each.states.size(); ++i)
      each.states[i] = outputs.at("state:" + std::to_string(i)).view(sizes);
    copy_master(each);
  }
}

}  // namespace medley
