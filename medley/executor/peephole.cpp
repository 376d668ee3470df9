#include "medley/executor/peephole.h"

#include <algorithm>
#include <optional>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/executor/empty_operands.h"
#include "medley/graph/rewrite.h"
#include "medley/ops/overwrite.h"

namespace medley {
namespace {

bool contains(const std::vector<ValueId>& values, ValueId value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Returns the bias if `add` adds a vector along the last dim of `product` and nothing else.
std::optional<ValueId> bias_of(const Graph& graph, ValueId product, const Op& add) {
  if (add.name != "aten.add.Tensor" || add.arguments.size() < 2) return std::nullopt;
  if (!is_unscaled(add)) return std::nullopt;
  const ValueId left = tensor_argument(add, 0), right = tensor_argument(add, 1);
  if ((left == product) == (right == product)) return std::nullopt;
  const ValueId bias = left == product ? right : left;
  if (bias == kNone) return std::nullopt;
  const TensorType& whole = type_of(graph, product);
  const TensorType& vector = type_of(graph, bias);
  if (vector.dtype != whole.dtype || vector.shape.size() != 1 ||
      vector.shape[0] != whole.shape.back() || type_of(graph, add.results[0]) != whole)
    return std::nullopt;
  return bias;
}

std::optional<SegmentOp> fuse_bias(const Graph& graph,
                                   const SegmentOp& first,
                                   const SegmentOp& next) {
  const bool mm = first.op.name == "aten.mm.default";
  if (!mm && first.op.name != "medley.contract.default") return std::nullopt;
  const ValueId product = first.op.results[0];
  if (product == kNone || !contains(next.dies, product)) return std::nullopt;
  const auto bias = bias_of(graph, product, next.op);
  if (!bias) return std::nullopt;

  SegmentOp fused{first.op, first.dies};
  fused.op.results = next.op.results;
  const ValueArgument added{*bias};
  if (mm) {
    fused.op.name = "aten.addmm.default";
    fused.op.arguments.insert(fused.op.arguments.begin(), added);
    fused.op.arguments.insert(fused.op.arguments.end(), {Size(1), Size(1)});
  } else {
    fused.op.name = "medley.contract_add.default";
    fused.op.arguments.emplace_back(added);
  }
  for (ValueId value : next.dies)
    if (value != product) fused.dies.push_back(value);
  return fused;
}

}  // namespace

std::vector<SegmentOp> fuse(const Graph& graph,
                            const Segment& segment,
                            const std::vector<int64_t>& symbols) {
  MEDLEY_CHECK_EQ(segment.ops.size(), segment.dies.size());
  std::vector<SegmentOp> ops;
  for (size_t i = 0; i < segment.ops.size(); ++i) {
    SegmentOp next{graph.ops[at(segment.ops[i])], segment.dies[i]};
    if (!ops.empty()) {
      auto fused = fuse_bias(graph, ops.back(), next);
      // The empty cases are decided op by op.
      if (fused && !is_empty(graph, ops.back().op.results[0], symbols)) {
        ops.back() = std::move(*fused);
        continue;
      }
    }
    ops.push_back(std::move(next));
  }
  return ops;
}

}  // namespace medley
