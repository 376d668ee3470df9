#include "medley/graph/passes.h"

#include <chrono>

#include "medley/base/at.h"
#include "medley/graph/rewrite.h"
#include "medley/graph/verify.h"

namespace medley {

Graph remove_dead_ops(const Graph& graph) {
  std::vector<bool> live(graph.values.size(), false);
  std::vector<bool> keep(graph.ops.size(), false);
  for (const Output& output : graph.outputs) live[at(output.value)] = true;
  for (size_t i = graph.ops.size(); i-- > 0;) {
    for (ValueId result : graph.ops[i].results)
      if (result != kNone && live[at(result)]) keep[i] = true;
    if (!keep[i]) continue;
    for (ValueId operand : operands(graph.ops[i]))
      if (operand != kNone) live[at(operand)] = true;
  }
  Rewrite rewrite(graph);
  for (size_t i = 0; i < graph.ops.size(); ++i)
    if (keep[i]) rewrite.keep(rewrite.translate(graph.ops[i]));
  return rewrite.finish();
}

Graph forward_only(const Graph& graph) {
  Graph forward = graph;
  std::erase_if(forward.outputs, [](const Output& output) {
    return output.kind != OutputKind::kLoss && output.kind != OutputKind::kMetric;
  });
  forward = remove_dead_ops(forward);
  verify(forward);
  return forward;
}

Graph split_addmm(const Graph& graph) {
  Rewrite rewrite(graph);
  for (const Op& op : graph.ops) {
    Op addmm = rewrite.translate(op);
    if (addmm.name != "aten.addmm.default" || addmm.arguments.size() != 5 ||
        !has_one_result(addmm) || number_argument(addmm, 3) != 1.0 ||
        number_argument(addmm, 4) != 1.0) {
      rewrite.keep(std::move(addmm));
      continue;
    }
    const TensorType& type = type_of(graph, op.results[0]);
    const ValueId product =
        rewrite.emit(op, "aten.mm.default", {addmm.arguments[1], addmm.arguments[2]}, type);
    const ValueId sum = rewrite.emit(
        op, "aten.add.Tensor", {ValueArgument{product}, addmm.arguments[0], Size(1)}, type);
    rewrite.replace(op.results[0], sum);
  }
  return rewrite.finish();
}

const std::vector<Pass>& passes() {
  static const std::vector<Pass> kPasses{
      {"remove_dead_ops", "drop ops that reach no output", remove_dead_ops},
      {"drop_unread_operands",
       "operands read for their shape, or not at all",
       drop_unread_operands},
      {"fold_constants",
       "constants become numbers of products, quotients and choices",
       fold_constants},
      {"fold_empty", "drop tensors without elements from what is joined", fold_empty},
      {"fold_counts", "index tensors that only count become views and gather", fold_counts},
      {"fold_identities", "drop ops that change nothing", fold_identities},
      {"split_addmm", "addmm becomes mm and add", split_addmm},
      {"merge_views_into_mm", "view, mm, view becomes contract", merge_views_into_mm},
      {"remove_dead_ops", "drop what the passes left behind", remove_dead_ops},
  };
  return kPasses;
}

Graph run_passes(const Graph& graph, std::vector<PassTime>* times) {
  verify(graph);
  Graph current = graph;
  for (const Pass& pass : passes()) {
    const auto start = std::chrono::steady_clock::now();
    Graph next = pass.run(current);
    verify(next);
    const std::chrono::nanoseconds time = std::chrono::steady_clock::now() - start;
    if (times)
      times->push_back({pass.name,
                        time.count(),
                        static_cast<int64_t>(current.ops.size()),
                        static_cast<int64_t>(next.ops.size())});
    current = std::move(next);
  }
  return current;
}

}  // namespace medley
