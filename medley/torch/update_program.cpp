#include "medley/torch/update_program.h"

#include <ATen/ops/scalar_tensor.h>

#include <map>
#include <memory>
#include <tuple>

#include "medley/graph/text.h"
#include "medley/torch/graph_runner.h"
#include "medley/torch/update_parts.h"

namespace medley {
namespace {

// Of this thread: a runner is at one place at a time.
GraphRunner& runner_of(const std::string& program, int64_t elements, c10::Device device) {
  using Key = std::tuple<std::string, int64_t, c10::DeviceType, c10::DeviceIndex>;
  thread_local std::map<Key, std::unique_ptr<GraphRunner>> runners;
  std::unique_ptr<GraphRunner>& runner =
      runners[{program, elements, device.type(), device.index()}];
  if (!runner)
    runner = std::make_unique<GraphRunner>(
        parse_graph(program, "optimizer"), std::vector<int64_t>{elements}, device);
  return *runner;
}

}  // namespace

void run_program(std::vector<Updated>& parameters,
                 const at::Tensor& scalars,
                 const std::string& program) {
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
    GraphRunner& runner = runner_of(program, into.numel(), into.device());
    const std::map<std::string, at::Tensor> outputs = runner.run(inputs);
    runner.forget();
    const auto sizes = into.sizes().vec();
    into = outputs.at("parameter:x").view(sizes);
    for (size_t i = 0; i < each.states.size(); ++i)
      each.states[i] = outputs.at("state:" + std::to_string(i)).view(sizes);
    copy_master(each);
  }
}

}  // namespace medley
