// The optimizer's ops, which planning appends.

#include <algorithm>
#include <string>

#include "medley/graph/replace_bf16.h"
#include "medley/ops/families.h"
#include "medley/ops/instance.h"
#include "medley/ops/update_ops.h"

namespace medley {
namespace {

std::optional<Instance> add_n(const Graph& graph, const Op& op) {
  InstanceBuilder builder(graph, op);
  std::vector<int> all;
  for (size_t i = 0; i < builder.num_operands(); ++i) {
    if (builder.operand(i) != builder.result()) return std::nullopt;
    all.push_back(static_cast<int>(i));
  }
  for (size_t d = 0; d < builder.result().size(); ++d) {
    const int label = builder.label(builder.result()[d]);
    for (size_t i = 0; i < builder.num_operands(); ++i) builder.label_operand(i, d, label);
    builder.label_result(0, d, label);
  }
  return builder.finish({all});
}

// Returns "" if states have other shapes than the parameter and none of its dims is cut. Locked
// dims are uncut, with the parameter's factors.
std::string pattern_of(const UpdateOp& op) {
  if (op.has_whole_program()) return "";
  const bool by_row = op.unit == UpdateUnit::kRow;
  const std::string dims = by_row ? "x.. m!" : op.unit == UpdateUnit::kElement ? ".." : "..!";
  std::string operands = dims + ", " + dims, results = dims;
  for (const UpdateState& state : op.states) {
    if (state.shape != StateShape::kSame && !by_row) return "";
    const std::string own = state.shape == StateShape::kSame ? dims : "x.. 1";
    operands += ", " + own + "?";
    results += ", " + own;
  }
  operands += ", " + dims + "?";  // the master copy
  results += ", " + dims;
  return operands + ", _ -> " + results;
}

UpdateOp pointwise(std::string_view name, std::vector<UpdateState> states) {
  UpdateOp op{name, std::move(states)};
  op.has_program = true;
  return op;
}

UpdateOp whole(std::string_view name, std::vector<UpdateState> states) {
  UpdateOp op = pointwise(name, std::move(states));
  op.unit = UpdateUnit::kTensor;
  op.work = WorkClass::kMatmul;
  return op;
}

std::optional<Instance> computed_whole(const Graph&, const Op&) { return std::nullopt; }

}  // namespace

const std::vector<UpdateOp>& update_ops() {
  static const std::vector<UpdateOp> kOps{
      {"medley.adafactor.default",
       {{"row_var", StateShape::kPerRow}, {"col_var", StateShape::kPerColumn}},
       5,
       0,
       UpdateUnit::kTensor},
      {"medley.adam.default", {{"exp_avg"}, {"exp_avg_sq"}}, 4},
      {"medley.adamw.default", {{"exp_avg"}, {"exp_avg_sq"}}, 4},
      {"medley.adamw8.default",
       {{"exp_avg", StateShape::kSame, kNone, true},
        {"exp_avg_scale", StateShape::kPerRow},
        {"exp_avg_sq", StateShape::kSame, kNone, true},
        {"exp_avg_sq_scale", StateShape::kPerRow}},
       4,
       0,
       UpdateUnit::kRow},
      {"medley.lion.default", {{"exp_avg"}}, 3},
      {"medley.muon.default", {{"momentum"}}, 9, 2, UpdateUnit::kTensor, WorkClass::kMatmul},
      pointwise("medley.pointwise0.default", {}),
      pointwise("medley.pointwise1.default", {{"state0"}}),
      pointwise("medley.pointwise2.default", {{"state0"}, {"state1"}}),
      pointwise("medley.pointwise3.default", {{"state0"}, {"state1"}, {"state2"}}),
      pointwise("medley.pointwise4.default", {{"state0"}, {"state1"}, {"state2"}, {"state3"}}),
      {"medley.sgd.default", {{"momentum", StateShape::kSame, 0}}, 3, 1},
      whole("medley.whole0.default", {}),
      whole("medley.whole1.default", {{"state0"}}),
      whole("medley.whole2.default", {{"state0"}, {"state1"}}),
      whole("medley.whole3.default", {{"state0"}, {"state1"}, {"state2"}}),
      whole("medley.whole4.default", {{"state0"}, {"state1"}, {"state2"}, {"state3"}}),
      whole("medley.whole5.default", {{"state0"}, {"state1"}, {"state2"}, {"state3"}, {"state4"}}),
      whole("medley.whole6.default",
            {{"state0"}, {"state1"}, {"state2"}, {"state3"}, {"state4"}, {"state5"}}),
  };
  return kOps;
}

std::string_view UpdateOp::kind() const {
  const size_t begin = name.find('.') + 1;
  return name.substr(begin, name.rfind('.') - begin);
}

const UpdateOp* find_update_op(std::string_view name) {
  const auto found = std::ranges::find(update_ops(), name, &UpdateOp::name);
  return found == update_ops().end() ? nullptr : &*found;
}

const UpdateOp* find_update_kind(std::string_view kind) {
  const auto found = std::ranges::find(update_ops(), kind, &UpdateOp::kind);
  return found == update_ops().end() ? nullptr : &*found;
}

std::optional<TensorType> state_type(const UpdateState& state, const TensorType& parameter) {
  const bool low = parameter.dtype == DType::kBF16 || parameter.dtype == DType::kF16;
  TensorType type{state.codes ? DType::kU8 : low ? DType::kF32 : parameter.dtype, parameter.shape};
  const size_t dims = type.shape.size();
  if (dims < 2)
    return state.shape == StateShape::kPerColumn ? std::nullopt : std::make_optional(type);
  if (state.shape == StateShape::kPerRow) type.shape[dims - 1] = Size(1);
  if (state.shape == StateShape::kPerColumn) type.shape[dims - 2] = Size(1);
  return type;
}

void share_local(Op& local, const LocalForm& form) {
  if (!std::get<Size>(local.arguments.at(2)).is_constant()) local.arguments[2] = form.step_rows;
}

std::vector<Rule> update_rules() {
  static const std::vector<std::string> kPatterns = [] {
    std::vector<std::string> patterns;
    for (const UpdateOp& op : update_ops()) patterns.push_back(pattern_of(op));
    return patterns;
  }();
  std::vector<Rule> rules = {
      {"medley.sum_squares.default", ".. -> 1", ""},
      {"medley.add_n.default", "", "", nullptr, add_n},
      {"medley.clip_scale.default", "1 -> 1, 1", ""},
      {"medley.scale_scalars.default", "_, 1 -> _", ""},
      {"medley.accumulate.default", ".. -> ..", "{0}"},
      {"medley.accumulate_mean.default", ".. -> ..", "{0}"},
      {kStepSum, ".. -> ..", ""},
      {kStepShare, ".. -> ..", "{0}", share_local},
      {"medley.average.default", ".., .., _ -> ..", "{0+1}"},
      {kLossScale, "1 -> 1", "{0}", nullptr, nullptr, WorkClass::kView},
      {"medley.scale_loss.default", "1, _ -> 1", "{0}"},
      {"medley.unscale_squares.default", "1, _ -> 1", ""},  // sum over all devices
      {"medley.scaled_step.default", "_, 1, 1, _ -> _", ""},
      {"medley.next_scale.default", "_, 1 -> _", ""},
  };
  for (size_t i = 0; i < kPatterns.size(); ++i) {
    const UpdateOp& op = update_ops()[i];
    rules.push_back({op.name,
                     kPatterns[i],
                     "",
                     nullptr,
                     kPatterns[i].empty() ? computed_whole : nullptr,
                     op.work});
  }
  return rules;
}

}  // namespace medley
