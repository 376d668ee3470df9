// Ops that make values from sizes. An operand only gives a dtype or a shape, and does not exist
// locally.

#include "medley/base/at.h"
#include "medley/ops/families.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"

namespace medley {
namespace {

// Makes every dim of the result a label. An operand of the result's shape shares them.
std::optional<Instance> make(const Graph& graph, const Op& op, bool locked) {
  InstanceBuilder builder(graph, op);
  std::vector<int> labels;
  for (const Size& size : builder.result()) labels.push_back(builder.label(size, locked));
  for (size_t d = 0; d < labels.size(); ++d) builder.label_result(0, d, labels[d]);
  Instance& instance = builder.instance();
  for (size_t i = 0; i < builder.num_operands(); ++i) {
    instance.shape_only[i] = true;
    if (builder.operand(i) != builder.result()) continue;
    for (size_t d = 0; d < labels.size(); ++d) builder.label_operand(i, d, labels[d]);
  }
  return builder.finish({});
}

std::optional<Instance> filled(const Graph& graph, const Op& op) { return make(graph, op, false); }
std::optional<Instance> made_whole(const Graph& graph, const Op& op) {
  return make(graph, op, true);
}

// Fills a new tensor of the local shape with argument `value` of the op, or with the number if it
// is kNoArgument.
constexpr size_t kNoArgument = 99;
template <size_t k_value, int k_number>
void filled_local(Op& local, const LocalForm& form) {
  const TensorType& type = form.results.at(0);
  const Argument value =
      k_value == kNoArgument ? Argument(Size(k_number)) : local.arguments.at(k_value);
  local.name = "aten.full.default";
  local.arguments = {type.shape, value, type.dtype, NoneArgument{}, NoneArgument{}, NoneArgument{}};
}

// arange(end), arange.start(start, end), arange.start_step(start, end, step): the elements of the
// local box.
template <size_t k_numbers>
void arange_local(Op& local, const LocalForm& form) {
  const TensorType& type = form.results.at(0);
  const Argument start = k_numbers == 1 ? Argument(Size(0)) : local.arguments.at(0);
  const Argument step = k_numbers == 3 ? local.arguments.at(2) : Argument(Size(1));
  std::vector<Size> sizes = form.factor_sizes.empty() ? type.shape : form.factor_sizes;
  std::vector<Size> origin(sizes.size()), full = sizes;
  for (const LocalCut& each : form.cuts) {
    if (each.cut.label == kNone) continue;
    const auto factor = at(each.cut.factor);
    origin.at(factor) = each.offset;
    full.at(factor) = each.full;
  }
  if (form.counted_rows != kNone) {
    const auto rows = at(form.counted_rows);
    origin.at(rows) = form.factor_offsets.at(rows);
    full.at(rows) = form.factor_fulls.at(rows);
  }
  local.name = "medley.arange_shard.default";
  local.arguments = {start, step, sizes, origin, full, type.dtype};
}

}  // namespace

std::vector<Rule> factory_rules() {
  return {
      {"aten.zeros.default", "", "", result_shape<0>, filled},
      {"aten.ones.default", "", "", result_shape<0>, filled},
      {"aten.empty.memory_format", "", "", filled_local<kNoArgument, 0>, filled},
      {"aten.full.default", "", "", result_shape<0>, filled},
      {"aten.scalar_tensor.default", "", "", nullptr, filled},
      {"aten.new_zeros.default", "", "", filled_local<kNoArgument, 0>, filled},
      {"aten.new_ones.default", "", "", filled_local<kNoArgument, 1>, filled},
      {"aten.new_empty.default", "", "", filled_local<kNoArgument, 0>, filled},
      {"aten.new_full.default", "", "", filled_local<2, 0>, filled},
      {"aten.zeros_like.default", "", "", filled_local<kNoArgument, 0>, filled},
      {"aten.ones_like.default", "", "", filled_local<kNoArgument, 1>, filled},
      {"aten.empty_like.default", "", "", filled_local<kNoArgument, 0>, filled},
      {"aten.full_like.default", "", "", filled_local<1, 0>, filled},
      {"aten.fill.Scalar", "", "", filled_local<1, 0>, filled},
      {"aten.arange.default", "", "", arange_local<1>, filled},
      {"aten.arange.start", "", "", arange_local<2>, filled},
      {"aten.arange.start_step", "", "", arange_local<3>, filled},
      {"aten.eye.default", "", "", nullptr, made_whole},
      {"aten.eye.m", "", "", nullptr, made_whole},
      {"aten.linspace.default", "", "", nullptr, made_whole},
      {"aten.tril_indices.default", "", "", nullptr, made_whole},
      {"aten.triu_indices.default", "", "", nullptr, made_whole},
  };
}

}  // namespace medley
