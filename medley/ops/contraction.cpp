#include "medley/ops/families.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"

namespace medley {
namespace {

// If k were split, every device would add the bias. Capture writes mm and add instead, so this is
// rare.
std::optional<Instance> addmm(const Graph& graph, const Op& op) {
  const auto values = operands(op);
  if (values.size() != 3) return std::nullopt;
  const bool row = type_of(graph, values[0]).shape.size() == 1;
  return instantiate(
      row ? "n&, m k!, k n -> m n" : "m& n&, m k!, k n -> m n", "{0+1}{0+2}", graph, op);
}

}  // namespace

std::vector<Rule> contraction_rules() {
  constexpr WorkClass kMatmul = WorkClass::kMatmul;
  return {
      {"aten.mm.default", "m k, k n -> m n", "{0}{1}", nullptr, nullptr, kMatmul},
      {"aten.bmm.default", "b m k, b k n -> b m n", "{0}{1}", nullptr, nullptr, kMatmul},
      {"aten.mv.default", "m k, k -> m", "{0}{1}", nullptr, nullptr, kMatmul},
      {"aten.dot.default", "k, k -> 1", "{0}{1}", nullptr, nullptr, kMatmul},
      {"aten.addmm.default", "", "", nullptr, addmm, kMatmul},
      {"aten.baddbmm.default",
       "b& m& n&, b m k!, b k n -> b m n",
       "{0+1}{0+2}",
       nullptr,
       nullptr,
       kMatmul},
      {"medley.contract.default", ".. k, k n -> .. n", "{0}{1}", nullptr, nullptr, kMatmul},
  };
}

}  // namespace medley
