#pragma once

// A whole graph on one device without a plan: for tests of kernels and executor, and as the measure
// of what the executor itself costs. Keeps parameters, buffers and optimizer state between runs.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "medley/program/program.h"
#include "medley/runtime/executor.h"

namespace medley {

class GraphRunner {
 public:
  // `symbols`: the value of every symbol of the graph. `watched`: ops whose results run() returns,
  // too, as "op:3:0" for result 0 of op 3.
  GraphRunner(Graph graph,
              std::vector<int64_t> symbols,
              c10::Device device,
              std::set<OpId> watched = {});

  // Inputs are called "parameter:wte.weight", "batch:input_ids", "scalar:rng",
  // "state:exp_avg:wte.weight"; the names of outputs likewise, "loss" for the loss. Missing inputs
  // keep what they had; outputs that are new values of inputs take their place. Returns the wanted
  // outputs, all if none are named.
  std::map<std::string, at::Tensor> run(const std::map<std::string, at::Tensor>& inputs,
                                        const std::set<std::string>& wanted = {});
  // Keeps nothing from now on.
  void forget();

 private:
  ValueId find_input(const std::string& name) const;

  LoweredStage stage_;
  std::vector<int64_t> symbols_;
  std::set<OpId> watched_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Frame> run_frame_, microbatch_frame_;
  std::unique_ptr<PreparedSegment> segment_;
};

}  // namespace medley
