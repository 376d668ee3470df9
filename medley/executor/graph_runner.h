#pragma once

// Runs a whole graph on one device without a plan, to test kernels and executor and to measure the
// executor's own cost. Keeps parameters, buffers and optimizer state between runs.

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
  // `symbols`: the value of every symbol of the graph. `watched`: ops whose results run() also
  // returns, as "op:3:0" for result 0 of op 3.
  GraphRunner(Graph graph,
              std::vector<int64_t> symbols,
              c10::Device device,
              std::set<OpId> watched = {});

  // Inputs are called "parameter:wte.weight", "batch:input_ids", "scalar:rng",
  // "state:exp_avg:wte.weight"; outputs likewise, and "loss". Missing inputs keep their values.
  // Outputs that are new values of inputs replace them. Returns the wanted outputs, all if none are
  // named.
  std::map<std::string, at::Tensor> run(const std::map<std::string, at::Tensor>& inputs,
                                        const std::set<std::string>& wanted = {});
  // Drops all kept values.
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
