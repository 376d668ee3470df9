#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "medley/base/at.h"
#include "medley/graph/passes.h"
#include "medley/graph/rewrite.h"

namespace medley {
namespace {

// Ops that keep the order of the first operand's elements.
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

// Returns whether the elements are 0, 1, 2, ... in order.
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

using Indices = std::vector<ValueArgument>;

// Returns whether x[indices] has the elements of x in order. Each index tensor then counts one dim
// of x along a dim of its own, in the order of the dims of x.
bool keeps_all(const Graph& graph, ValueId x, const Indices& indices) {
  size_t before = 0;  // dim that the last index counts along, from the right, from 1 on
  size_t last = 0;    // the dim of x; from 1 on
  for (size_t d = indices.size(); d-- > 0;) {
    const ValueId index = indices[d].value;
    if (index == kNone) continue;
    if (last != 0 && d + 2 != last) return false;  // new dims would come first
    last = d + 1;
    const std::vector<Size>& shape = type_of(graph, index).shape;
    const auto long_one = [](const Size& size) { return size != Size(1); };
    const auto along = std::find_if(shape.begin(), shape.end(), long_one);
    if (along == shape.end() || std::find_if(along + 1, shape.end(), long_one) != shape.end())
      return false;
    const auto place = at(shape.end() - along);
    if (place <= before || *along != type_of(graph, x).shape[d] || !counts(graph, index))
      return false;
    before = place;
  }
  return last != 0;
}

// Returns whether the indices are all rows of x, and one column for each row.
bool picks_columns(const Graph& graph, ValueId x, const Indices& indices) {
  if (indices.size() != 2 || indices[0].value == kNone || indices[1].value == kNone) return false;
  const std::vector<Size> rows{type_of(graph, x).shape[0]};
  const TensorType& columns = type_of(graph, indices[1].value);
  return type_of(graph, indices[0].value).shape == rows && columns.shape == rows &&
         is_whole(columns.dtype) && counts(graph, indices[0].value);
}

class CountFolder {
 public:
  explicit CountFolder(const Graph& graph) : graph_(graph), rewrite_(graph) {}

  Graph run() {
    for (const Op& op : graph_.ops) {
      Op translated = rewrite_.translate(op);
      const ValueId folded = fold(op, translated);
      if (folded == kNone)
        rewrite_.keep(std::move(translated));
      else
        rewrite_.replace(op.results[0], folded);
    }
    return rewrite_.finish();
  }

 private:
  // Returns the same result from other ops, or kNone.
  ValueId fold(const Op& place, const Op& op) {
    const bool puts = op.name == "aten.index_put.default" && op.arguments.size() == 4;
    if (!puts && (op.name != "aten.index.Tensor" || op.arguments.size() != 2)) return kNone;
    const ValueId x = tensor_argument(op, 0);
    const auto* indices = std::get_if<Indices>(&op.arguments[1]);
    if (x == kNone || !indices || indices->size() > type_of(rewrite_.to(), x).shape.size() ||
        !has_one_result(place))
      return kNone;
    const TensorType& type = type_of(graph_, place.results[0]);
    if (!puts && keeps_all(rewrite_.to(), x, *indices))
      return rewrite_.emit(place, "aten.view.default", {ValueArgument{x}, type.shape}, type);
    if (!picks_columns(rewrite_.to(), x, *indices)) return kNone;
    if (!puts) return pick(place, x, (*indices)[1].value, type);
    const ValueId values = tensor_argument(op, 2);
    if (values == kNone || op.arguments[3] != Argument(true)) return kNone;
    return add_picked(place, x, (*indices)[1].value, values);
  }

  // Returns x[i, column[i], ..].
  ValueId pick(const Op& place, ValueId x, ValueId columns, const TensorType& type) {
    const ValueId wide = widened(place, x, columns);
    const TensorType one{type_of(rewrite_.to(), x).dtype, type_of(rewrite_.to(), wide).shape};
    const ValueId picked = rewrite_.emit(
        place, "aten.gather.default", {ValueArgument{x}, Size(1), ValueArgument{wide}, false}, one);
    return rewrite_.emit(place, "aten.view.default", {ValueArgument{picked}, type.shape}, type);
  }

  // Returns x plus one value in one column of each row.
  ValueId add_picked(const Op& place, ValueId x, ValueId columns, ValueId values) {
    const TensorType type = type_of(rewrite_.to(), x);
    TensorType one = type;
    one.shape[1] = Size(1);
    std::vector<Size> shape = type_of(rewrite_.to(), values).shape;
    shape.insert(shape.begin() + 1, Size(1));
    if (shape != one.shape) return kNone;
    const ValueId wide = widened(place, x, columns);
    const ValueId apart =
        rewrite_.emit(place, "aten.view.default", {ValueArgument{values}, one.shape}, one);
    return rewrite_.emit(place,
                         "aten.scatter_add.default",
                         {ValueArgument{x}, Size(1), ValueArgument{wide}, ValueArgument{apart}},
                         type);
  }

  // Returns columns from 0 on, one per element of a row's columns: [rows, 1, ..].
  ValueId widened(const Op& place, ValueId x, ValueId columns) {
    std::vector<Size> shape = type_of(rewrite_.to(), x).shape;
    const Size limit = std::exchange(shape[1], Size(1));
    const auto emit = [&](const char* name, std::vector<Argument> rest, std::vector<Size> to) {
      rest.insert(rest.begin(), ValueArgument{columns});
      columns = rewrite_.emit(place, name, std::move(rest), {DType::kI64, std::move(to)});
    };
    if (type_of(rewrite_.to(), columns).dtype != DType::kI64) {
      const NoneArgument none;
      emit("aten._to_copy.default", {DType::kI64, none, none, none, false, none}, {shape[0]});
    }
    emit("aten.remainder.Scalar", {limit}, {shape[0]});  // -1 is the last column
    std::vector<Size> narrow(shape.size(), Size(1));
    narrow[0] = shape[0];
    emit("aten.view.default", {narrow}, narrow);
    emit("aten.expand.default", {shape, false}, shape);
    return columns;
  }

  const Graph& graph_;
  Rewrite rewrite_;
};

}  // namespace

Graph fold_counts(const Graph& graph) { return CountFolder(graph).run(); }

}  // namespace medley
