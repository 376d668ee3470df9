// Ops that move elements without reading them: labels follow the arguments.

#include <algorithm>
#include <numeric>

#include "medley/base/at.h"
#include "medley/ops/families.h"
#include "medley/ops/instance.h"
#include "medley/ops/localize.h"

namespace medley {
namespace {

const std::vector<std::vector<int>> kLinear = {{0}};

Size common_factor(const Size& a, const Size& b) {
  Size common(std::gcd(a.coefficient, b.coefficient));
  std::ranges::set_intersection(a.symbols, b.symbols, std::back_inserter(common.symbols));
  return common;
}

// Refines the dims of a view into common labels, from the left:
//
//   [b*s, 3*h*d] -> [b, s, 3, h, d]      (b s) (3 h d) -> b s 3 h d
//   [6, 4] -> [4, 6]                     (2 3!) 4! -> (2 2!) 6!
//
// Without common labels, dims are taken on both sides until the elements agree, and locked.
std::optional<Instance> view(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  if (builder.num_operands() != 1 || op.results.size() != 1) return std::nullopt;
  const auto& from = builder.operand(0);
  const auto& to = builder.result();
  struct Side {
    size_t dim = 0;
    Size left = Size(1);  // unlabelled part of the dim
  } in, out;
  const auto next = [](Side& side, const std::vector<Size>& shape) {
    while (side.left == Size(1) && side.dim < shape.size()) side.left = shape[side.dim++];
    return side.left != Size(1);
  };
  for (;;) {
    const bool more_in = next(in, from), more_out = next(out, to);
    if (!more_in && !more_out) break;
    if (more_in != more_out || in.left.coefficient == 0 || out.left.coefficient == 0)
      return std::nullopt;
    const Size common = common_factor(in.left, out.left);
    const int label = builder.label(common);
    builder.label_operand(0, in.dim - 1, label);
    builder.label_result(0, out.dim - 1, label);
    in.left = *divide(in.left, common);
    out.left = *divide(out.left, common);
    if (label != kNone) continue;
    // Locks the rest of these dims and following ones, until both sides have equally many elements.
    Size in_size = in.left, out_size = out.left;
    builder.label_operand(0, in.dim - 1, builder.label(in.left, true));
    builder.label_result(0, out.dim - 1, builder.label(out.left, true));
    in.left = out.left = Size(1);
    while (in_size != out_size) {
      bool take_in =
          divide(out_size, in_size).has_value() || !divide(in_size, out_size).has_value();
      if (!next(take_in ? in : out, take_in ? from : to)) take_in = !take_in;
      Side& side = take_in ? in : out;
      if (!next(side, take_in ? from : to)) return std::nullopt;
      const int rest = builder.label(side.left, true);
      if (take_in) {
        builder.label_operand(0, side.dim - 1, rest);
        in_size = in_size * side.left;
      } else {
        builder.label_result(0, side.dim - 1, rest);
        out_size = out_size * side.left;
      }
      side.left = Size(1);
    }
  }
  return builder.finish(kLinear);
}

// Permutes dims: order[i] is the dim of the operand that becomes dim i of the result.
std::optional<Instance> permuted(InstanceBuilder& builder, const std::vector<size_t>& order) {
  if (order.size() != builder.result().size()) return std::nullopt;
  for (size_t i = 0; i < order.size(); ++i) builder.map(0, order[i], 0, i);
  return builder.finish(kLinear);
}

std::optional<Instance> transpose(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const size_t rank = builder.operand(0).size();
  std::vector<size_t> order(rank);
  std::iota(order.begin(), order.end(), size_t{0});
  if (op.arguments.size() == 1) {  // t()
    std::ranges::reverse(order);
    return permuted(builder, order);
  }
  const auto a = dim(op, 1, rank), b = dim(op, 2, rank);
  if (!a || !b) return std::nullopt;
  std::swap(order[*a], order[*b]);
  return permuted(builder, order);
}

std::optional<Instance> permute(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const auto rank = static_cast<int64_t>(builder.operand(0).size());
  const auto* sizes = std::get_if<std::vector<Size>>(&op.arguments.at(1));
  if (!sizes) return std::nullopt;
  std::vector<size_t> order;
  for (const Size& size : *sizes)
    order.push_back(at(size.coefficient + (size.coefficient < 0 ? rank : 0)));
  return permuted(builder, order);
}

// squeeze, unsqueeze: the other dims keep their order.
std::optional<Instance> drop_ones(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const auto& from = builder.operand(0);
  const auto& to = builder.result();
  size_t in = 0, out = 0;
  for (;;) {
    while (in < from.size() && from[in] == Size(1)) ++in;
    while (out < to.size() && to[out] == Size(1)) ++out;
    if (in == from.size() || out == to.size()) break;
    if (from[in] != to[out]) return std::nullopt;
    builder.map(0, in++, 0, out++);
  }
  if (in != from.size() || out != to.size()) return std::nullopt;
  return builder.finish(kLinear);
}

// Replaces squeeze by a view of the local shape: a shard's dim may have size 1 unlike the whole's.
void squeeze_local(Op& local, const LocalForm& form) {
  local.name = "aten.view.default";
  local.arguments = {local.arguments.at(0), form.results.at(0).shape};
}

// Makes new dims, and those that grow from 1, labels of the result alone.
std::optional<Instance> expand(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const auto& from = builder.operand(0);
  const auto& to = builder.result();
  if (from.size() > to.size()) return std::nullopt;
  const size_t added = to.size() - from.size();
  for (size_t d = 0; d < to.size(); ++d) {
    if (d >= added && from[d - added] == to[d]) {
      builder.map(0, d - added, 0, d);
    } else if (d < added || from[d - added] == Size(1)) {
      builder.label_result(0, d, builder.label(to[d]));
    } else {
      return std::nullopt;
    }
  }
  return builder.finish(kLinear);
}

// repeat: a dim d repeated z times is the product (z d).
std::optional<Instance> repeat(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  const auto& from = builder.operand(0);
  const auto& to = builder.result();
  if (from.size() > to.size()) return std::nullopt;
  const size_t added = to.size() - from.size();
  for (size_t d = 0; d < to.size(); ++d) {
    const Size size = d < added ? Size(1) : from[d - added];
    const auto times = divide(to[d], size);
    if (!times) return std::nullopt;
    builder.label_result(0, d, builder.label(*times));
    if (d < added) continue;
    const int label = builder.label(size);
    builder.label_operand(0, d - added, label);
    builder.label_result(0, d, label);
  }
  return builder.finish(kLinear);
}

void repeat_local(Op& local, const LocalForm& form) {
  const auto& from = form.operands.at(0).shape;
  const auto& to = form.results.at(0).shape;
  auto& times = std::get<std::vector<Size>>(local.arguments.at(1));
  for (size_t d = 0; d < to.size(); ++d) {
    const Size size = d < to.size() - from.size() ? Size(1) : from[d + from.size() - to.size()];
    times.at(d) = divide(to[d], size).value_or(times[d]);
  }
}

}  // namespace

std::vector<Rule> layout_rules() {
  constexpr WorkClass kView = WorkClass::kView;
  return {
      {"aten.view.default", "", "", result_shape<1>, view, kView},
      {"aten.reshape.default", "", "", result_shape<1>, view, kView},
      {"aten._unsafe_view.default", "", "", result_shape<1>, view, kView},
      {"aten.t.default", "", "", nullptr, transpose, kView},
      {"aten.transpose.int", "", "", nullptr, transpose, kView},
      {"aten.permute.default", "", "", nullptr, permute, kView},
      {"aten.unsqueeze.default", "", "", nullptr, drop_ones, kView},
      {"aten.squeeze.default", "", "", squeeze_local, drop_ones, kView},
      {"aten.squeeze.dim", "", "", squeeze_local, drop_ones, kView},
      {"aten.squeeze.dims", "", "", squeeze_local, drop_ones, kView},
      {"aten.expand.default", "", "", result_shape<1>, expand, kView},
      {"aten.repeat.default", "", "", repeat_local, repeat},
  };
}

}  // namespace medley
