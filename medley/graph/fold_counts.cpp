#include <algorithm>
#include <array>
#include <string_view>

#include "medley/graph/passes.h"
#include "medley/graph/rewrite.h"

namespace medley {
namespace {

// Ops that leave the elements of the first operand in their order.
constexpr std::array<std::string_view, 9> kReshapes{"aten._unsafe_view.default",
                                                    "aten.alias.default",
                                                    "aten.clone.default",
                                                    "aten.detach.default",
                                                    "aten.reshape.default",
                                                    "aten.squeeze.default",
                                                    "aten.squeeze.dim",
                                                    "aten.unsqueeze.default",
                                                    "aten.view.default"};

bool is_whole(DType dtype) { return dtype == DType::kI32 || dtype == DType::kI64; }

// Whether the elements are 0, 1, 2, ... in their order.
bool counts(const Graph& graph, ValueId value) {
  for (const Op* op = producer_of(graph, value); op; op = producer_of(graph, value)) {
    if (!is_whole(type_of(graph, value).dtype)) return false;
    if (op->name == "aten.arange.default") return true;
    if (op->name == "aten.arange.start") return number_argument(*op, 0) == 0.0;
    if (op->name == "aten.arange.start_step")
      return number_argument(*op, 0) == 0.0 && number_argument(*op, 2) == 1.0;
    const bool plus_zero = op->name == "aten.add.Tensor" && number_argument(*op, 1) == 0.0;
    if (!plus_zero && op->name != "aten._to_copy.default" &&
        !std::binary_search(kReshapes.begin(), kReshapes.end(), std::string_view(op->name)))
      return false;
    value = tensor_argument(*op, 0);
    if (value == kNone) return false;
  }
  return false;
}

// Whether x[indices] has the elements of x in their order: each index tensor counts the whole of
// its dim of x, along a dim of its own, and these come in the order of the dims of x.
bool keeps_all(const Graph& graph, const Op& op) {
  const ValueId x = tensor_argument(op, 0);
  const auto* list = std::get_if<std::vector<ValueArgument>>(&op.arguments.at(1));
  if (x == kNone || !list || list->size() > type_of(graph, x).shape.size()) return false;
  size_t before =
      0;            // from the right, the place of the dim that the last index counts along, and 1
  size_t last = 0;  // the dim of x, and 1
  for (size_t d = list->size(); d-- > 0;) {
    const ValueId index = (*list)[d].value;
    if (index == kNone) continue;
    if (last != 0 && d + 2 != last) return false;  // made dims would come first
    last = d + 1;
    const std::vector<Size>& shape = type_of(graph, index).shape;
    const auto long_one = [](const Size& size) { return size != Size(1); };
    const auto along = std::find_if(shape.begin(), shape.end(), long_one);
    if (along == shape.end() || std::find_if(along + 1, shape.end(), long_one) != shape.end())
      return false;
    const auto place = static_cast<size_t>(shape.end() - along);
    if (place <= before || *along != type_of(graph, x).shape[d] || !counts(graph, index))
      return false;
    before = place;
  }
  return last != 0;
}

}  // namespace

Graph fold_counts(const Graph& graph) {
  Rewrite rewrite(graph);
  for (const Op& op : graph.ops) {
    Op index = rewrite.translate(op);
    if (index.name != "aten.index.Tensor" || index.arguments.size() != 2 ||
        index.results.size() != 1 || index.results[0] == kNone || !keeps_all(rewrite.to(), index)) {
      rewrite.keep(std::move(index));
      continue;
    }
    const TensorType& type = type_of(graph, op.results[0]);
    rewrite.replace(op.results[0],
                    rewrite.emit(op, "aten.view.default", {index.arguments[0], type.shape}, type));
  }
  return rewrite.finish();
}

}  // namespace medley
