#pragma once

// An optimizer that somebody has written: the graph of one element (ops/update_ops.h).

#include <map>
#include <memory>
#include <string>

#include "medley/torch/graph_runner.h"
#include "medley/torch/update.h"

namespace medley {

class UpdateProgram {
 public:
  explicit UpdateProgram(std::string text) : text_(std::move(text)) {}
  const std::string& text() const { return text_; }

  // As an Update does. Requires: always on the device of the first call.
  void operator()(std::vector<Updated>& parameters, const at::Tensor& scalars);

 private:
  std::string text_;
  std::map<int64_t, std::unique_ptr<GraphRunner>> runners_;  // by number of elements
};

}  // namespace medley
