#include "medley/base/at.h"
#include "medley/graph/passes.h"
#include "medley/graph/rewrite.h"

namespace medley {
namespace {

// Returns whether the op is aten.<name> with these tensors first and one result.
bool is_binary(const Op& op, std::string_view name) {
  return op.name == name && tensor_argument(op, 0) != kNone && tensor_argument(op, 1) != kNone &&
         has_one_result(op);
}

// Finds matrices [r, k] whose rows are merged leading dims of a tensor. Follows them through mm and
// the bias after it, and computes those restored by a view in unmerged form:
//
//   x [b, s, k] -view-> [b*s, k] -mm w-> [b*s, n] -add-> [b*s, n] -view-> [b, s, n]
//   x [b, s, k] ---------- contract w -> [b, s, n] ---------- add ------> [b, s, n]
//
// Other users of such a matrix get a view of the unmerged tensor.
class MergeViews {
 public:
  explicit MergeViews(const Graph& graph)
      : graph_(graph),
        rewrite_(graph),
        leading_(graph.values.size(), kNone),
        wanted_(graph.values.size(), false),
        unmerged_(graph.values.size(), kNone) {}

  Graph run() {
    for (const Op& op : graph_.ops) find(op);
    for (auto op = graph_.ops.rbegin(); op != graph_.ops.rend(); ++op) want(*op);
    for (const Op& op : graph_.ops) write(op);
    return rewrite_.finish();
  }

 private:
  // Returns the value whose leading dims are the rows of `value`, or kNone.
  ValueId& leading(ValueId value) { return leading_[at(value)]; }
  ValueId& unmerged(ValueId value) { return unmerged_[at(value)]; }
  bool wanted(ValueId value) const { return wanted_[at(value)]; }
  const TensorType& type(ValueId value) const { return type_of(graph_, value); }

  TensorType unmerged_type(ValueId value) {
    TensorType wide{type(value).dtype, type(leading(value)).shape};
    wide.shape.back() = type(value).shape.back();
    return wide;
  }

  bool is_step(const Op& op) {
    if (is_binary(op, "aten.mm.default")) return type(op.results[0]).shape.size() == 2;
    if (!is_binary(op, "aten.add.Tensor") || number_argument(op, 2) != 1.0) return false;
    const TensorType& sum = type(op.results[0]);
    const TensorType& bias = type(tensor_argument(op, 1));
    return type(tensor_argument(op, 0)) == sum && sum.shape.size() == 2 && bias.shape.size() == 1 &&
           bias.shape[0] == sum.shape[1];
  }

  void find(const Op& op) {
    if (is_view(op)) {
      const ValueId x = tensor_argument(op, 0);
      const auto& from = type(x).shape;
      const auto& to = type(op.results[0]).shape;
      if (to.size() == 2 && from.size() >= 3 && from.back() == to.back())
        leading(op.results[0]) = x;
    } else if (is_step(op)) {
      leading(op.results[0]) = leading(tensor_argument(op, 0));
    }
  }

  bool restores(const Op& op) {
    const ValueId merged = is_view(op) ? tensor_argument(op, 0) : kNone;
    return merged != kNone && leading(merged) != kNone &&
           type(op.results[0]) == unmerged_type(merged);
  }

  void want(const Op& op) {
    const bool step = is_step(op) && leading(op.results[0]) != kNone && wanted(op.results[0]);
    if (step || restores(op)) wanted_[at(tensor_argument(op, 0))] = true;
  }

  void write(const Op& op) {
    if (restores(op)) return rewrite_.replace(op.results[0], unmerged(tensor_argument(op, 0)));
    const bool step = is_step(op) && leading(op.results[0]) != kNone && wanted(op.results[0]);
    if (step) return write_step(op);
    rewrite_.keep(rewrite_.translate(op));
    if (is_view(op) && leading(op.results[0]) != kNone)
      unmerged(op.results[0]) = rewrite_.now(leading(op.results[0]));
  }

  void write_step(const Op& op) {
    const ValueId result = op.results[0];
    const ValueArgument x{unmerged(tensor_argument(op, 0))};
    const ValueArgument other{rewrite_.now(tensor_argument(op, 1))};
    const bool mm = op.name == "aten.mm.default";
    std::vector<Argument> arguments{x, other};
    if (!mm) arguments.emplace_back(Size(1));
    const char* name = mm ? "medley.contract.default" : "aten.add.Tensor";
    unmerged(result) = rewrite_.emit(op, name, std::move(arguments), unmerged_type(result));
    rewrite_.replace(result,
                     rewrite_.emit(op,
                                   "aten.view.default",
                                   {ValueArgument{unmerged(result)}, type(result).shape},
                                   type(result)));
  }

  const Graph& graph_;
  Rewrite rewrite_;
  std::vector<ValueId> leading_;   // [old value] the root in the old graph
  std::vector<bool> wanted_;       // [old value] some view restores it
  std::vector<ValueId> unmerged_;  // [old value] its unmerged form in the new graph
};

}  // namespace

Graph merge_views_into_mm(const Graph& graph) { return MergeViews(graph).run(); }

}  // namespace medley
