#include <algorithm>

#include "medley/graph/passes.h"
#include "medley/graph/rewrite.h"

namespace medley {
namespace {

bool is_empty(const Graph& graph, ValueId value) {
  return value != kNone && std::ranges::count(type_of(graph, value).shape, Size(0)) > 0;
}

}  // namespace

Graph fold_empty(const Graph& graph) {
  Rewrite rewrite(graph);
  for (const Op& op : graph.ops) {
    Op translated = rewrite.translate(op);
    const bool one = has_one_result(op) && !op.arguments.empty() && !is_empty(graph, op.results[0]);
    auto* list = op.name == "aten.cat.default" && one
                     ? std::get_if<std::vector<ValueArgument>>(&translated.arguments[0])
                     : nullptr;
    if (list)
      std::erase_if(*list, [&](const ValueArgument& v) { return is_empty(rewrite.to(), v.value); });
    if (list && list->size() == 1 &&
        type_of(rewrite.to(), list->front().value) == type_of(graph, op.results[0])) {
      rewrite.replace(op.results[0], list->front().value);
    } else if (one && op.name == "aten.slice_backward.default" &&
               is_empty(rewrite.to(), tensor_argument(translated, 0))) {
      rewrite.replace(op.results[0], rewrite.emit_full(op, Size(0), type_of(graph, op.results[0])));
    } else {
      rewrite.keep(std::move(translated));
    }
  }
  return rewrite.finish();
}

}  // namespace medley
