// Routed experts: gathers each expert's tokens, applies two matmuls, and adds the results.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>

#include "medley/base/error.h"
#include "medley/kernels/kernels.h"

namespace medley {
namespace {

using at::Tensor;

bool is_tanh_gelu(std::string_view name) {
  return name == "gelu_tanh" || name == "gelu_new" || name == "gelu_pytorch_tanh";
}

Tensor activate(std::string_view name, const Tensor& x) {
  if (name == "silu") return at::silu(x);
  if (name == "gelu") return at::gelu(x);
  if (is_tanh_gelu(name)) return at::gelu(x, "tanh");
  if (name == "relu") return at::relu(x);
  throw Error(Blame::kCaller, fmt::format("unknown activation of experts: {}", name));
}

Tensor activate_backward(std::string_view name, const Tensor& grad, const Tensor& x) {
  if (name == "silu") return at::silu_backward(grad, x);
  if (name == "gelu") return at::gelu_backward(grad, x);
  if (is_tanh_gelu(name)) return at::gelu_backward(grad, x, "tanh");
  return at::threshold_backward(grad, x, 0);
}

struct Tokens {
  Tensor rows;   // in x
  Tensor slots;  // into the flat weights
};

// Returns the tokens of every expert of this shard, from one sort.
std::vector<Tokens> tokens_by_expert(const Tensor& indices, int64_t experts, int64_t offset) {
  const Tensor flat = indices.reshape({-1});
  const auto [sorted, order] = flat.sort(/*stable=*/true, 0, /*descending=*/false);
  const Tensor sorted_host = sorted.cpu();
  const auto* values = sorted_host.const_data_ptr<int64_t>();
  const int64_t count = flat.numel(), k = indices.size(1);
  std::vector<Tokens> tokens;
  int64_t begin = std::lower_bound(values, values + count, offset) - values;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t end = std::upper_bound(values + begin, values + count, offset + e) - values;
    const Tensor slots = order.narrow(0, begin, end - begin);
    tokens.push_back({slots.div(k, "floor"), slots});
    begin = end;
  }
  return tokens;
}

// The forward pass of one expert, with the inputs of its backward pass.
struct Hidden {
  Tensor x, up, gate, hidden;  // gate is undefined if there is none
};

Hidden run_expert(const Tensor& x,
                  const Tensor& gate_up,
                  int64_t width,
                  std::string_view activation) {
  const Tensor both = at::mm(x, gate_up.t());
  if (both.size(1) == width) return {x, both, {}, activate(activation, both)};
  const Tensor gate = both.narrow(1, 0, width), up = both.narrow(1, width, width);
  return {x, up, gate, activate(activation, gate) * up};
}

}  // namespace

Tensor experts(const Tensor& x,
               const Tensor& indices,
               const Tensor& weights,
               const Tensor& gate_up,
               const Tensor& down,
               std::string_view activation,
               int64_t offset,
               int64_t /*experts*/) {
  Tensor out = at::zeros({x.size(0), down.size(1)}, x.options());
  if (x.size(0) == 0 || gate_up.numel() == 0) return out;
  const Tensor flat_weights = weights.reshape({-1});
  const auto tokens = tokens_by_expert(indices, gate_up.size(0), offset);
  for (size_t e = 0; e < tokens.size(); ++e) {
    if (tokens[e].rows.numel() == 0) continue;
    const auto expert = static_cast<int64_t>(e);
    const Hidden h = run_expert(
        x.index_select(0, tokens[e].rows), gate_up.select(0, expert), down.size(2), activation);
    const Tensor scale = flat_weights.index_select(0, tokens[e].slots).unsqueeze(1);
    out.index_add_(0, tokens[e].rows, at::mm(h.hidden, down.select(0, expert).t()).mul_(scale));
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> experts_backward(const Tensor& grad,
                                                            const Tensor& x,
                                                            const Tensor& indices,
                                                            const Tensor& weights,
                                                            const Tensor& gate_up,
                                                            const Tensor& down,
                                                            std::string_view activation,
                                                            int64_t offset,
                                                            int64_t /*experts*/) {
  const at::NoGradGuard no_grad;  // in-place writes need no history
  Tensor dx = at::zeros_like(x), dweights = at::zeros({weights.numel()}, weights.options());
  Tensor dgate_up = at::zeros_like(gate_up), ddown = at::zeros_like(down);
  if (x.size(0) == 0 || gate_up.numel() == 0)
    return {dx, dweights.view(weights.sizes()), dgate_up, ddown};
  const Tensor flat_weights = weights.reshape({-1});
  const auto tokens = tokens_by_expert(indices, gate_up.size(0), offset);
  for (size_t e = 0; e < tokens.size(); ++e) {
    if (tokens[e].rows.numel() == 0) continue;
    const auto expert = static_cast<int64_t>(e);
    const Tensor w1 = gate_up.select(0, expert), w2 = down.select(0, expert);
    const Hidden h = run_expert(x.index_select(0, tokens[e].rows), w1, down.size(2), activation);
    const Tensor scale = flat_weights.index_select(0, tokens[e].slots).unsqueeze(1);
    Tensor dout = grad.index_select(0, tokens[e].rows);
    Tensor back = at::mm(dout, w2);  // without the weight: its matmul with hidden gives d weight
    dweights.index_copy_(0, tokens[e].slots, (back * h.hidden).sum(1).to(weights.scalar_type()));
    const Tensor dhidden = back.mul_(scale), scaled = dout.mul_(scale);
    Tensor ddown_of_expert = ddown.select(0, expert),
           dgate_up_of_expert = dgate_up.select(0, expert);
    at::mm_out(ddown_of_expert, scaled.t(), h.hidden);
    const Tensor dboth = h.gate.defined()
                             ? at::cat({activate_backward(activation, dhidden * h.up, h.gate),
                                        dhidden * activate(activation, h.gate)},
                                       1)
                             : activate_backward(activation, dhidden, h.up);
    at::mm_out(dgate_up_of_expert, dboth.t(), h.x);
    dx.index_add_(0, tokens[e].rows, at::mm(dboth, w1));
  }
  return {dx, dweights.view(weights.sizes()), dgate_up, ddown};
}

}  // namespace medley
