#pragma once

// A user's optimizer: a graph (ops/update_ops.h).

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "medley/executor/graph_runner.h"
#include "medley/kernels/update.h"

namespace medley {

class UpdateProgram {
 public:
  explicit UpdateProgram(std::string text) : text_(std::move(text)) {}
  const std::string& text() const { return text_; }

  // Updates as an Update does. Requires: always on the device of the first call.
  void operator()(std::vector<Updated>& parameters, const UpdateNow& now);

 private:
  struct Runner {
    explicit Runner(Graph graph, int64_t elements, c10::Device device);
    bool is_flat;                      // the program is of a vector, whatever the shape
    std::vector<std::string> scalars;  // inputs: learning rate, step, then values of the step
    GraphRunner graph;
  };
  std::string text_;
  std::map<int64_t, std::unique_ptr<Runner>> runners_;  // by number of elements
};

}  // namespace medley
