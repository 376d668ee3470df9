#include <array>
#include <string_view>

#include "medley/graph/passes.h"
#include "medley/graph/rewrite.h"

namespace medley {
namespace {

struct Factory {
  std::string_view name;
  int fill;  // the value, or -1: given by argument 1 or 2
};
constexpr std::array<Factory, 8> kFactories{{{"aten.zeros_like.default", 0},
                                             {"aten.ones_like.default", 1},
                                             {"aten.empty_like.default", 0},
                                             {"aten.full_like.default", -1},
                                             {"aten.new_zeros.default", 0},
                                             {"aten.new_ones.default", 1},
                                             {"aten.new_empty.default", 0},
                                             {"aten.new_full.default", -2}}};

std::optional<Argument> fill_of(const Op& op) {
  for (const Factory& factory : kFactories) {
    if (op.name != factory.name) continue;
    if (factory.fill >= 0) return Argument(Size(factory.fill));
    const auto at = static_cast<size_t>(-factory.fill);
    if (at >= op.arguments.size() || !number_argument(op, at)) return std::nullopt;
    return op.arguments[at];
  }
  return std::nullopt;
}

constexpr int64_t kSumReduction = 2;

bool sums_nll(const Op& op) {
  return op.name == "aten.nll_loss_backward.default" && op.arguments.size() == 7 &&
         op.arguments[4] == Argument(Size(kSumReduction));
}

}  // namespace

Graph drop_unread_operands(const Graph& graph) {
  Rewrite rewrite(graph);
  for (const Op& op : graph.ops) {
    if (const std::optional<Argument> fill = fill_of(op); fill && has_one_result(op)) {
      rewrite.replace(op.results[0], rewrite.emit_full(op, *fill, type_of(graph, op.results[0])));
      continue;
    }
    Op copy = rewrite.translate(op);
    if (sums_nll(op) && tensor_argument(op, 6) != kNone)
      copy.arguments[6] =
          ValueArgument{rewrite.emit_full(op, Size(1), type_of(graph, tensor_argument(op, 6)))};
    rewrite.keep(std::move(copy));
  }
  return rewrite.finish();
}

}  // namespace medley
