#include "medley/executor/library.h"

#include <torch/library.h>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/executor/update_program.h"
#include "medley/kernels/kernels.h"
#include "medley/ops/local_ops.h"
#include "medley/ops/update_ops.h"

namespace medley {
namespace {

// Written by lowering, without op rules.
constexpr std::string_view kLoweredOps[] = {
    "medley::contract_add(Tensor x, Tensor w, Tensor bias) -> Tensor",
    "medley::pack(Tensor x, int pre, int[] lengths, int post) -> Tensor",
    "medley::unpack(Tensor flat, int pre, int[] lengths, int post, int[] shape) -> Tensor",
    "medley::take(Tensor x, int pre, int size, int post, int offset, int length, int[] shape)"
    " -> Tensor",
    "medley::place(Tensor x, int pre, int size, int post, int offset, int length, int[] shape,"
    " float fill) -> Tensor",
    "medley::keep_first(Tensor x, int me) -> Tensor",
    "medley::scaled_sum(Tensor sum, float factor) -> Tensor",
    "medley::expand_channels(Tensor bias, int[] shape) -> Tensor",
    "medley::convolution_backward_empty(Tensor grad, int[] input, int[] weight)"
    " -> (Tensor, Tensor, Tensor)",
    "medley::log_sum_exp(Tensor logits) -> Tensor",
    "medley::cross_entropy(Tensor logits, Tensor log_sum_exp, Tensor target, Tensor? weight,"
    " int reduction, int ignore_index) -> (Tensor, Tensor)",
    "medley::cross_entropy_backward(Tensor logits, Tensor log_sum_exp, Tensor grad, Tensor target,"
    " Tensor? weight, int reduction, int ignore_index, Tensor total_weight) -> Tensor",
    "medley::cross_entropy_backward.out(Tensor logits, Tensor log_sum_exp, Tensor grad,"
    " Tensor target, Tensor? weight, int reduction, int ignore_index, Tensor total_weight, *,"
    " Tensor(a!) out) -> Tensor(a!)",
};

void define(torch::Library& library, std::string_view schema) {
  const std::string text(schema);
  const std::string whole = text.substr(0, text.find('('));
  const size_t dot = whole.find('.');
  const c10::OperatorName name{whole.substr(0, dot),
                               dot == std::string::npos ? "" : whole.substr(dot + 1)};
  // The Python side defines its ops if it was imported without this library.
  if (!c10::Dispatcher::singleton().findSchema(name)) library.def(text.c_str());
}

// Copies make the update functional: kernels/update.h overwrites unshared memory.
void update_step(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const std::string& name = handle.schema().name();
  const UpdateOp* kind = find_update_kind(std::string_view(name).substr(name.rfind(':') + 1));
  MEDLEY_CHECK(kind);
  const std::vector<c10::IValue> given =
      torch::jit::pop(*stack, kind->scalars() + 1 + kind->more_arguments());
  const auto copy = [&](size_t i) {
    return given[i].isNone() ? at::Tensor() : given[i].toTensor().clone();
  };
  std::vector<Updated> one(1);
  one[0].parameter = copy(0);
  one[0].gradient = given[1].toTensor();
  for (size_t i = 0; i < kind->states.size(); ++i) one[0].states.push_back(copy(i + 2));
  one[0].master = copy(kind->scalars() - 1);
  std::vector<double> numbers;
  for (size_t i = kind->scalars() + 1; i <= kind->scalars() + at(kind->numbers); ++i)
    numbers.push_back(given[i].isBool() ? static_cast<double>(given[i].toBool())
                                        : given[i].toScalar().toDouble());
  const UpdateNow now = read_scalars(given[kind->scalars()].toTensor(), numbers);
  if (!now.skips() && kind->has_program)
    UpdateProgram(given.back().toStringRef())(one, now);
  else if (!now.skips())
    find_update(kind->name)(one, now);
  torch::jit::push(*stack, one[0].parameter);
  for (at::Tensor& state : one[0].states) torch::jit::push(*stack, state);
  torch::jit::push(*stack, one[0].master);
}

void implement(torch::Library& library) {
  library.impl("attention", attention);
  library.impl("attention_backward", attention_backward);
  library.impl("dropout", dropout);
  library.impl("dropout_backward", dropout);
  library.impl("random", medley::random);
  library.impl("mean_loss", mean_loss);
  library.impl("mean_loss_backward", mean_loss);
  library.impl("experts", experts);
  library.impl("experts_backward", experts_backward);
  library.impl("contract", contract);
  library.impl("dequantize_4bit", dequantize_4bit);
  library.impl("contract_add", contract_add);
  for (const UpdateOp& op : update_ops())
    library.impl(std::string(op.kind()).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&update_step>());
  library.impl("sum_squares", sum_squares);
  library.impl("add_n", add_n);
  library.impl("clip_scale", clip_scale);
  library.impl("scale_scalars", scale_scalars);
  library.impl("accumulate", accumulate);
  library.impl("accumulate_mean", accumulate_mean);
  library.impl("step_sum", step_sum);
  library.impl("step_share", step_share);
  library.impl("average", average);
  library.impl("loss_scale", same_gradient);
  library.impl("scale_loss", scale_loss);
  library.impl("unscale_squares", unscale_squares);
  library.impl("scaled_step", scaled_step);
  library.impl("next_scale", next_scale);
  library.impl("mean", mean);
  library.impl("arange_shard", arange_shard);
  library.impl("embedding_select", embedding_select);
  library.impl("embedding_backward_select", embedding_backward_select);
  library.impl("nll_select", nll_select);
  library.impl("nll_backward_select", nll_backward_select);
  library.impl("log_sum_exp", log_sum_exp);
  library.impl("cross_entropy", cross_entropy);
  library.impl("cross_entropy_backward", cross_entropy_backward);
  library.impl("cross_entropy_backward.out", cross_entropy_backward_out);
  library.impl("pack", pack);
  library.impl("unpack", unpack);
  library.impl("take", take);
  library.impl("place", place);
  library.impl("keep_first", keep_first);
  library.impl("scaled_sum", scaled_sum);
  library.impl("expand_channels", expand_channels);
  library.impl("convolution_backward_empty", convolution_backward_empty);
}

}  // namespace

void register_kernels() {
  static const std::vector<torch::Library> registered = [] {
    std::vector<torch::Library> libraries;
    libraries.emplace_back(torch::Library::FRAGMENT, "medley", std::nullopt, __FILE__, __LINE__);
    for (std::string_view schema : kCapturedOps) define(libraries[0], schema);
    for (std::string_view schema : kUpdateOps) define(libraries[0], schema);
    for (std::string_view schema : kLocalOps) define(libraries[0], schema);
    for (std::string_view schema : kLoweredOps) define(libraries[0], schema);
    libraries.emplace_back(torch::Library::IMPL,
                           "medley",
                           c10::DispatchKey::CompositeExplicitAutograd,
                           __FILE__,
                           __LINE__);
    implement(libraries[1]);
    return libraries;
  }();
}

}  // namespace medley
