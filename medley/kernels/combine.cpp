#include "medley/kernels/combine.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>

#include <numeric>

#include "medley/base/error.h"

namespace medley {
namespace {

int64_t sum_before(const std::vector<int64_t>& lengths, size_t end) {
  return std::accumulate(lengths.begin(), lengths.begin() + static_cast<int64_t>(end), int64_t{0});
}

// Returns the piece of a flat concatenation that is for device `j`.
at::Tensor piece(const at::Tensor& flat, const std::vector<int64_t>& lengths, size_t j) {
  MEDLEY_CHECK_EQ(flat.numel(), sum_before(lengths, lengths.size()));
  return flat.reshape({-1}).narrow(0, sum_before(lengths, j), lengths[j]);
}

at::Tensor on(const at::Tensor& tensor, const at::Device& device) {
  if (tensor.device() == device) return tensor;
  if (tensor.numel() == 0) return at::empty(tensor.sizes(), tensor.options().device(device));
  return tensor.to(device);
}

// Moves tensors to the device of the first, since the devices of a process may be several GPUs.
Tensors together(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) result.push_back(on(tensor, tensors[0].device()));
  return result;
}

// Returns the output of device `me`, on its device.
at::Tensor combine_one(const CommunicationTraits& traits,
                       Reduce reduce,
                       const Tensors& inputs,
                       const std::vector<Executor::Lengths>& lengths,
                       size_t me) {
  Tensors parts;
  for (size_t j = 0; j < inputs.size(); ++j) {
    if (traits.receives && !traits.sends)
      MEDLEY_CHECK_EQ(inputs[j].numel(), lengths[me].receive[j]);
    at::Tensor part = traits.sends ? piece(inputs[j], lengths[j].send, me) : inputs[j];
    if (traits.receives) part = part.reshape({-1});
    parts.push_back(on(part, inputs[me].device()));
  }
  return traits.sums ? reduce_in_order(parts, reduce) : at::cat(parts);
}

// Passes inputs to the receivers. The senders are first in the group.
std::vector<Tensors> hand_over(const std::vector<Tensors>& inputs,
                               const std::vector<Executor::Lengths>& lengths) {
  std::vector<Tensors> outputs(inputs.size());
  for (size_t me = 0; me < inputs.size(); ++me) {
    if (!inputs[me].empty()) continue;
    Tensors parts;
    for (size_t j = 0; j < inputs.size(); ++j)
      if (!inputs[j].empty()) parts.push_back(piece(inputs[j].at(0), lengths[j].send, me));
    outputs[me].push_back(at::cat(together(parts)));
  }
  return outputs;
}

}  // namespace

bool is_foreign(const at::Device& made_on, const at::Device& own) {
  return !made_on.is_cpu() && made_on != own;
}

at::Tensor arrived(at::Tensor tensor, const at::Device& own) {
  if (!tensor.defined() || !is_foreign(tensor.device(), own)) return tensor;
  return tensor.to(own);
}

at::Tensor reduce_in_order(const Tensors& terms, Reduce reduce) {
  MEDLEY_CHECK(!terms.empty());
  if (terms.size() == 1) return terms[0];
  if (reduce == Reduce::kMax) {
    at::Tensor largest = at::maximum(terms[0], terms[1]);
    for (size_t i = 2; i < terms.size(); ++i) largest = at::maximum(largest, terms[i]);
    return largest;
  }
  const auto type = terms[0].scalar_type();
  const bool narrow = type == c10::kBFloat16 || type == c10::kHalf;
  at::Tensor sum = narrow ? terms[0].to(c10::kFloat).add_(terms[1]) : at::add(terms[0], terms[1]);
  for (size_t i = 2; i < terms.size(); ++i) sum.add_(terms[i]);
  return narrow ? sum.to(type) : sum;
}

std::vector<Tensors> combine(CommunicationKind kind,
                             Reduce reduce,
                             const std::vector<Tensors>& inputs,
                             const std::vector<Executor::Lengths>& lengths) {
  MEDLEY_CHECK(!inputs.empty());
  if (kind == CommunicationKind::kTransfer) return hand_over(inputs, lengths);
  const CommunicationTraits& traits = traits_of(kind);
  std::vector<Tensors> outputs(inputs.size());
  for (size_t t = 0; t < inputs[0].size(); ++t) {
    Tensors column;
    for (const Tensors& row : inputs) column.push_back(row[t]);
    // Without pieces all devices get the same.
    const at::Tensor shared =
        traits.sends ? at::Tensor() : combine_one(traits, reduce, column, lengths, 0);
    for (size_t me = 0; me < inputs.size(); ++me)
      outputs[me].push_back(traits.sends ? combine_one(traits, reduce, column, lengths, me)
                                         : shared);
  }
  return outputs;
}

}  // namespace medley
