// lower_stage(): the program of one stage's devices.

#include "medley/lower/lower_stage.h"

#include <algorithm>

#include "medley/base/at.h"
#include "medley/lower/cross_entropy.h"
#include "medley/lower/gradient_sync_lowering.h"
#include "medley/lower/stage_transfers.h"
#include "medley/lower/step_sums.h"
#include "medley/ops/rule.h"
#include "medley/ops/update_ops.h"
#include "medley/program/call_parts.h"
#include "medley/program/calls.h"
#include "medley/program/commit.h"
#include "medley/program/lifetimes.h"

namespace medley {
namespace {

// Returns the cuts of a whole graph's tensor in a placement.
PlacedValue place_value(LocalGraph& local, const Input& input, ValueId whole, const Placement& at) {
  PlacedValue placed{input, at, {}, {}};
  for (const auto& dim : local.completed.factors->values[static_cast<size_t>(whole)]) {
    std::vector<Size>& sizes = placed.factors.emplace_back();
    for (ExtentId extent : dim)
      sizes.push_back(local.completed.factors->extent_sizes[static_cast<size_t>(extent)]);
  }
  if (const auto share = local.shares.find(whole); share != local.shares.end()) {
    const auto& [position, interval] = share->second;
    const Size& full = local.full_size(whole, position);
    placed.cuts.push_back({position,
                           local.symbols.begin_within(at, position, full, interval),
                           local.symbols.length_within(at, position, full, interval)});
  }
  for (const AxisPlacement& axis : at) {
    const int position = axis.position;
    if (axis.holding != Holding::kSharded ||
        std::any_of(placed.cuts.begin(), placed.cuts.end(), [&](const PlacedValue::Cut& cut) {
          return cut.position == position;
        }))
      continue;
    const Size& full = local.full_size(whole, position);
    placed.cuts.push_back({position,
                           local.symbols.offset(at, position, full),
                           local.symbols.length(at, position, full)});
  }
  return placed;
}

LocalCut local_cut(LocalGraph& graph, OpId id, const Cut& cut, const std::vector<Choice>& choice) {
  const Factors& factors = *graph.completed.factors;
  const std::vector<Size>& sizes = factors.extent_sizes;
  const auto& extents = factors.labels[at(id)][at(cut.label)];
  // The axes that cut this factor, as if it were a value by itself.
  Placement at;
  for (const Choice& axis : choice)
    at.push_back(axis.kind == ChoiceKind::kCut && axis.cut == cut ? sharded(0, axis.part)
                                                                  : replicated());
  const Size& full = sizes[static_cast<size_t>(extent_of(factors, id, cut))];
  LocalCut local{cut, graph.symbols.length(at, 0, full), graph.symbols.offset(at, 0, full), full};
  for (auto k = static_cast<size_t>(cut.factor) + 1; k < extents.size(); ++k)
    local.behind = local.behind * sizes[static_cast<size_t>(extents[k])];
  return local;
}

void describe_factors(LocalGraph& graph, ValueId value, const Placement& at, LocalForm& form) {
  form.factor_sizes = graph.local_factors(value, at);
  const std::vector<Size> whole = graph.local_factors(value, graph.whole());
  for (size_t p = 0; p < whole.size(); ++p) {
    const int position = static_cast<int>(p);
    const bool batch = whole[p] == SymbolTable::rows();
    if (batch && form.step_rows == SymbolTable::batch()) form.counted_rows = position;
    form.factor_fulls.push_back(batch ? SymbolTable::batch() : whole[p]);
    form.factor_offsets.push_back(batch ? graph.symbols.row(at, position, whole[p])
                                        : graph.symbols.offset(at, position, whole[p]));
  }
}

// Rewrites an op of the whole graph to a device's part.
void localize(LocalGraph& graph,
              OpId id,
              const std::vector<Choice>& choice,
              const std::vector<Placement>& placements,
              LocalForm& form,
              Op& local) {
  const Op& op = graph.source.ops[at(id)];
  const Rule* rule = find_rule(op.name);
  const std::shared_ptr<const Instance>& instance = graph.completed.factors->instances[at(id)];
  if (!rule || !rule->localize || !instance) return;
  form.global = &graph.source;
  form.op = &op;
  form.instance = instance.get();
  for (const Choice& axis : choice)
    if (axis.kind == ChoiceKind::kCut && (form.cuts.empty() || form.cuts[0].cut != axis.cut))
      form.cuts.push_back(local_cut(graph, id, axis.cut, choice));
  if (!op.results.empty() && op.results[0] != kNone)
    describe_factors(graph, op.results[0], placements[0], form);
  rule->localize(local, form);
}

bool types_differ(const LoweredStage& stage) {
  const std::vector<DType>& types = stage.bf16_as;
  return std::ranges::any_of(types, [&](DType each) { return each != types[0]; });
}

std::string metric_of(const Output& output) {
  return output.kind == OutputKind::kMetric ? output.name : "";
}

bool has_rows_of_all(const std::string& name, const TensorType& type) {
  return is_carried(name) || has_rows(type);
}

class Lowering {
 public:
  Lowering(const DecidedStage& decided,
           const Connections& connections,
           int64_t global_batch,
           const LowerOptions& options)
      : completed_(decided.completed),
        graph_(decided.completed.prepared->graph),
        microbatches_(decided.microbatches),
        batches_(decided.batches),
        connections_(connections),
        first_row_(decided.first_row),
        global_batch_(global_batch),
        fewest_classes_(decided.fewest_classes),
        options_(options),
        local_(decided),
        redistribution_(local_, options.bucket_bytes),
        values_(local_, redistribution_),
        transfers_(local_, values_),
        sums_(local_, values_),
        sync_(local_, values_, redistribution_, connections) {}

  LoweredStage run() {
    for (const Input& input : graph_.inputs)
      if (input.kind != InputKind::kReceived) add_input_of(input);
    if (batches_ > 0) save_changing_buffers();
    for (const auto& [value, crossing] : connections_.receives) transfers_.receive(value, crossing);
    for (const Output& output : graph_.outputs)
      if (output.kind == OutputKind::kGradient && is_received_gradient(graph_, output.value))
        sync_.sync(output.name, output.value);
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      const Phase phase = graph_.ops[i].phase;
      const Phase before = i > 0 ? graph_.ops[i - 1].phase : Phase::kForward;
      if (before != phase && before == Phase::kBackward) end_backward();
      if (before != phase && phase == Phase::kBackward) transfers_.receive_new_values();
      // Before the update waits for others.
      if (before != phase && phase == Phase::kUpdate) begin_update();
      local_.enter(phase_of(graph_.ops[i]), false);
      emit(static_cast<OpId>(i));
    }
    if (!graph_.ops.empty() && graph_.ops.back().phase == Phase::kBackward) end_backward();
    if (graph_.ops.empty() || graph_.ops.back().phase != Phase::kUpdate) begin_update();
    store_outputs();
    finish();
    return std::move(local_.stage);
  }

 private:
  const Placement& placement(ValueId value) const {
    return completed_.assignment.placements[at(value)];
  }

  void add_input_of(const Input& input) {
    if (input.kind == InputKind::kBatch)
      if (const auto found = connections_.metrics.find(std::string(kCarried) + input.name);
          found != connections_.metrics.end())
        return add_carried_input(input, found->first, found->second);
    if (input.kind == InputKind::kState) sync_.restrict_to_share(input.role.of, input.value);
    Input local = input;
    local.value = values_.add_input(input, placement(input.value));
    local_.stage.inputs.push_back(place_value(local_, local, input.value, placement(input.value)));
  }

  // Adds a batch input whose rows are in a buffer on every device.
  void add_carried_input(const Input& input, const std::string& name, TensorType type) {
    type.dtype = type_of(graph_, input.value).dtype;
    local_.enter(Phase::kForward, false);
    const ValueId local = sums_.add_carried_input(input, name, type);
    PlacedValue placed{{InputKind::kBuffer, name, local}, local_.whole(), {}, {}};
    for (const Size& size : type.shape) placed.factors.push_back({size});
    local_.stage.inputs.push_back(std::move(placed));
  }

  const std::string* find_rows(const Op& op) const {
    if (!accumulates(op) || !has_rows(type_of(graph_, op.results[0]))) return nullptr;
    for (const Output& output : graph_.outputs)
      if (output.kind == OutputKind::kMetric && output.value == op.results[0]) return &output.name;
    return nullptr;
  }

  TensorType summed(const std::string& name, ValueId value) const {
    return summed_type(name, type_of(graph_, value), connections_.wire, global_batch_);
  }

  // Adds the rows that this device has of each micro-batch.
  void collect_rows(const Op& op, const std::string& name) {
    const TensorType type = summed(name, op.results[0]);
    const ValueId placed = sums_.place_rows(operands(op)[0], type);
    rows_[name] = local_.add_op("medley.accumulate.default", {ValueArgument{placed}}, type);
  }

  // Returns the forward phase for sums over a batch that is one micro-batch.
  Phase phase_of(const Op& op) const {
    return batches_ > 0 && is_prologue(op.phase) ? Phase::kForward : op.phase;
  }

  void emit(OpId id) {
    const Op& op = graph_.ops[at(id)];
    if (const std::string* name = find_rows(op)) return collect_rows(op, *name);
    const Phase phase = phase_of(op);
    const std::vector<Choice>& choice = completed_.assignment.choices[at(id)];
    const std::vector<ValueId> values = operands(op);
    const std::vector<Placement> wanted =
        operand_placements(graph_, *completed_.factors, id, choice);
    Op local = op;
    LocalForm form;
    form.step_rows = batches_ > 0 ? SymbolTable::rows() : SymbolTable::batch();
    std::vector<ValueId> locals;
    const OpRole role = completed_.prepared->roles[at(id)];
    const std::string* divided =
        role.kind == OpRole::Kind::kNorm ? nullptr : find_share(*completed_.prepared, id);
    const std::string* share = role.kind == OpRole::Kind::kUpdate ? divided : nullptr;
    for (size_t i = 0; i < values.size(); ++i) {
      locals.push_back(values[i] == kNone ? kNone
                       : share && i == 0  ? sync_.take_share(*share, values[i], wanted[i])
                                          : values_.in_placement(values[i], wanted[i]));
      form.operands.push_back(values[i] == kNone ? TensorType{}
                                                 : local_.stage.graph.values[at(locals[i])].type);
    }
    size_t next = 0;
    for_each_operand(local, [&](ValueId& value) {
      while (values[next] == kNone) ++next;
      value = locals[next++];
    });
    const std::vector<Placement> placements =
        result_placements(graph_, *completed_.factors, id, choice);
    if (phase != op.phase && accumulates(op))
      return values_.define(op.results[0], placements[0], locals[0]);
    std::vector<TensorType> types;
    for (size_t r = 0; r < op.results.size(); ++r) {
      if (divided && op.results[r] != kNone) sync_.restrict_to_share(*divided, op.results[r]);
      form.results.push_back(
          op.results[r] == kNone ? TensorType{} : local_.local_type(op.results[r], placements[r]));
      if (op.results[r] != kNone) types.push_back(form.results[r]);
    }
    localize(local_, id, choice, placements, form, local);
    if (batches_ > 0 && accumulates(op) && is_floating(form.results[0].dtype)) {
      local.name = "medley.accumulate_mean.default";
      local.arguments.emplace_back(Size(batches_));
    }
    local.results.clear();
    const std::vector<ValueId> fresh = local_.add_op(std::move(local), types);
    std::vector<ValueId>& results = local_.stage.graph.ops.back().results;
    results.clear();
    size_t used = 0;
    for (size_t r = 0; r < op.results.size(); ++r) {
      results.push_back(op.results[r] == kNone ? kNone : fresh[used++]);
      if (results[r] == kNone) continue;
      local_.stage.graph.values[at(results[r])].result = static_cast<int32_t>(r);
      values_.define(op.results[r], placements[r], results[r]);
    }
    if (share) sync_.send_value(*share, op.results[0]);
    if (accumulates(op)) synchronise(op);
    if (role.kind == OpRole::Kind::kNormSum && !norm_devices().empty())
      sums_.sum_over_stages(op.results[0], "norm/sum", norm_devices());
    // Accumulated values are sent after the last micro-batch.
    local_.enter(phase, accumulates(op));
    for (ValueId result : op.results)
      for (auto [to, end] = connections_.sends.equal_range(result); to != end; ++to)
        if (!to->second.once) transfers_.send(result, to->second);
    local_.enter(phase, false);
  }

  // Returns all devices for a commit, even if some need no others, and for the check of finite
  // gradients.
  std::vector<int> norm_devices() const {
    const bool alone = connections_.norm_devices.empty() && local_.stage.devices.size() > 1;
    const bool for_all = options_.commit || completed_.prepared->scales_loss;
    return for_all && alone ? local_.stage.devices : connections_.norm_devices;
  }

  // Begins the update phase. A stage without a backward phase only receives.
  void begin_update() {
    local_.enter(Phase::kUpdate, false);
    sync_.flush();
    // New values leave after all sums.
    if (!connections_.values.empty()) sync_.finish();
    send_new_values();
  }

  // Sends a buffer's new value to the other stages that store it, in the order of the ops.
  void send_new_values() {
    for (const Op& op : graph_.ops)
      for (ValueId value : op.results)
        for (auto [to, end] = connections_.sends.equal_range(value); to != end; ++to) {
          const Crossing& crossing = to->second;
          if (!crossing.once) continue;
          local_.enter(Phase::kForward, false);
          local_.keep_for_update(values_.in_placement(
              value, crossing.from.dim < 0 ? local_.whole() : crossing.from.placement));
          local_.enter(Phase::kUpdate, false);
          transfers_.send(value, crossing);
        }
  }

  // Replaces normalisers by those of the whole step after the last micro-batch, and starts the
  // gradients' redistribution for the update.
  void synchronise(const Op& op) {
    local_.enter(op.phase, true);
    if (is_prologue(op.phase)) sum_normaliser(op);
    if (op.phase == Phase::kBackward) {
      if (types_differ(local_.stage)) values_.agree(op.results[0]);
      for (size_t i = 0; i < graph_.outputs.size(); ++i)
        if (graph_.outputs[i].kind == OutputKind::kGradient &&
            graph_.outputs[i].value == op.results[0] &&
            !sync_.sync(graph_.outputs[i].name, op.results[0]))
          values_.start(op.results[0], completed_.assignment.stored[i]);
    }
    local_.enter(op.phase, false);
  }

  // Sums a normaliser over this pipeline, then over all.
  void sum_normaliser(const Op& op) {
    const ValueId normaliser = op.results[0];
    values_.in_placement(normaliser, local_.whole());
    if (connections_.normalisers.empty()) return;
    const int32_t number =
        completed_.prepared->roles[at(graph_.values[at(normaliser)].producer)].of;
    const std::string& what = completed_.prepared->normalisers[at(number)];
    const SummedNormaliser& sum = connections_.normalisers.at(what);
    sums_.sum_over_stages(normaliser, "normaliser " + what, sum.devices, sum.counts);
  }

  void end_backward() {
    local_.enter(Phase::kBackward, true);
    redistribution_.flush_buckets();
    sync_.flush();
  }

  // Saves buffers for the backward phase of a micro-batch, before the next one changes them.
  void save_changing_buffers() {
    local_.enter(Phase::kForward, false);
    for (const Output& output : graph_.outputs)
      for (const Input& input : graph_.inputs)
        if (output.kind == OutputKind::kBuffer && input.kind == InputKind::kBuffer &&
            input.name == output.name)
          values_.save_for_backward(input.value);
  }

  // Returns a buffer's new value. It replaces the old one at the end of the step, or as soon as the
  // micro-batch has gone forward.
  ValueId new_value(ValueId value, const Placement& kept) {
    const bool comes_at_the_end = std::ranges::any_of(
        connections_.receives,
        [&](const auto& received) { return received.first == value && received.second.once; });
    local_.enter(comes_at_the_end ? Phase::kUpdate : Phase::kForward, false);
    if (types_differ(local_.stage) && !comes_at_the_end) values_.agree(value);
    const ValueId local = values_.in_placement(value, kept);
    return batches_ > 0 ? local : local_.keep_for_update(local);
  }

  using LocalInputs = std::map<std::pair<InputKind, std::string>, ValueId>;

  // Assigns new values of parameters that owners divide.
  void assign_received_values(const LocalInputs& inputs) {
    local_.enter(Phase::kUpdate, false);
    sync_.send_values();
    const auto& [shares, elsewhere] = completed_.prepared->updated;
    for (const Input& input : graph_.inputs)
      if (input.kind == InputKind::kParameter &&
          (shares.contains(input.name) || elsewhere.contains(input.name)))
        assigns_[Phase::kUpdate].push_back({sync_.receive_value(input.name, input.value),
                                            inputs.at({InputKind::kParameter, input.name})});
  }

  // Redistributes every output to its stored placement, and records the replacements.
  void store_outputs() {
    LocalInputs inputs;
    for (const PlacedValue& placed : local_.stage.inputs)
      inputs[{placed.input.kind, placed.input.name}] = placed.input.value;
    assign_received_values(inputs);
    const auto& [shares, elsewhere] = completed_.prepared->updated;
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      const Output& output = graph_.outputs[i];
      if (output.kind == OutputKind::kSent || rows_.contains(metric_of(output)) ||
          (output.kind == OutputKind::kGradient && elsewhere.contains(output.name)) ||
          (output.kind == OutputKind::kParameter && shares.contains(output.name)))
        continue;
      const Placement& kept = completed_.assignment.stored[i];
      local_.enter(Phase::kUpdate, false);
      if (types_differ(local_.stage) &&
          (output.kind == OutputKind::kLoss || output.kind == OutputKind::kMetric))
        values_.agree(output.value);
      const ValueId local = output.kind == OutputKind::kBuffer
                                ? new_value(output.value, kept)
                                : values_.in_placement(output.value, kept);
      switch (output.kind) {
        case OutputKind::kLoss:
          local_.stage.loss = local;
          break;
        case OutputKind::kMetric:
          local_.stage.metrics[output.name] = local;
          break;
        case OutputKind::kGradient:
          local_.stage.gradients.push_back(
              place_value(local_, {InputKind::kParameter, output.name, local}, output.value, kept));
          break;
        case OutputKind::kBuffer:
          assigns_[batches_ > 0 ? Phase::kForward : Phase::kUpdate].push_back(
              {local, inputs.at({InputKind::kBuffer, output.name})});
          break;
        case OutputKind::kParameter:
          assigns_[Phase::kUpdate].push_back(
              {local, inputs.at({InputKind::kParameter, output.name})});
          break;
        case OutputKind::kState:
          assigns_[Phase::kUpdate].push_back({local, inputs.at({InputKind::kState, output.name})});
          break;
        case OutputKind::kSent:
          break;
      }
    }
    local_.enter(Phase::kUpdate, false);
    ValueId& loss = local_.stage.loss;
    if (!connections_.all_devices.empty())
      loss = sum_over_all(loss, {connections_.loss, {}}, "loss");
    report_metrics(inputs);
    if (completed_.prepared->gradient_norm != kNone)
      local_.stage.gradient_norm =
          values_.in_placement(completed_.prepared->gradient_norm, local_.whole());
  }

  // Reports the metrics of all stages on every device.
  void report_metrics(const LocalInputs& inputs) {
    std::map<std::string, TensorType> types = connections_.metrics;
    for (const auto& [name, local] : rows_)
      types.try_emplace(name, local_.stage.graph.values[at(local)].type);
    const bool is_alone = connections_.all_devices.empty();
    const std::vector<int>& devices = is_alone ? local_.stage.devices : connections_.all_devices;
    for (const auto& [name, type] : types) {
      if (!has_rows_of_all(name, type)) {
        if (is_alone) continue;
        const auto [found, is_elsewhere] = local_.stage.metrics.try_emplace(name, kNone);
        found->second = sum_over_all(found->second, type, name);
        continue;
      }
      const auto own = rows_.find(name);
      const ValueId sum = sums_.sum_rows(
          own == rows_.end() ? std::nullopt : std::optional(own->second), type, name, devices);
      local_.stage.metrics[name] = sum;
      const auto buffer = inputs.find({InputKind::kBuffer, name});
      if (buffer == inputs.end()) continue;
      const DType dtype = local_.stage.graph.values[at(buffer->second)].type.dtype;
      assigns_[Phase::kUpdate].push_back({local_.cast(sum, dtype), buffer->second});
    }
  }

  ValueId sum_over_all(ValueId value, const TensorType& type, const std::string& what) {
    return sums_.sum_over_stages(
        value == kNone ? std::nullopt : std::optional(value), type, what, connections_.all_devices);
  }

  void finish() {
    LoweredStage& stage = local_.stage;
    stage.graph.symbols = local_.symbols.names();
    std::vector<ValueId> keep = reported(stage);
    for (const auto& [phase, assigns] : assigns_)
      for (const Assign& assign : assigns) keep.push_back(assign.from);
    if (options_.keep_gradients)
      for (const PlacedValue& gradient : stage.gradients) keep.push_back(gradient.input.value);
    drop_unused(stage, local_.items, keep);
    fuse_cross_entropy(stage, fewest_classes_, local_.items, keep);
    if (has_weights(connections_.order)) send_first(stage, local_.items[Phase::kBackward]);
    for (Phase phase : {Phase::kForward, Phase::kBackward})
      if (const auto found = local_.items.find(phase); found != local_.items.end())
        prefetch_parameters(stage, found->second);
    if (const auto found = local_.items.find(Phase::kUpdate);
        options_.commit && found != local_.items.end())
      stage.commit = commit_first(stage, found->second);
    stage.functions = make_functions(stage, local_.items, keep);
    for (Function& function : stage.functions) {
      if (function.kind == FunctionKind::kForward) function.assigns = assigns_[Phase::kForward];
      if (function.kind == FunctionKind::kUpdate) function.assigns = assigns_[Phase::kUpdate];
    }
    const bool has_update =
        !stage.functions.empty() && stage.functions.back().kind == FunctionKind::kUpdate;
    if (!has_update && !assigns_[Phase::kUpdate].empty())
      stage.functions.push_back({FunctionKind::kUpdate, {}, assigns_[Phase::kUpdate]});
    add_calls(stage, connections_.order, static_cast<int>(microbatches_.size()));
    fill_tables();
    stage.symbols = local_.symbols;
  }

  void fill_tables() {
    int64_t row = first_row_;
    for (size_t m = 0; m < microbatches_.size(); ++m) {
      local_.stage.tables.push_back(local_.symbols.tables(microbatches_[m], m, row, global_batch_));
      row += microbatches_[m].rows;
    }
    local_.stage.microbatches = microbatches_;
  }

  const Completed& completed_;
  const Graph& graph_;
  const std::vector<Microbatch>& microbatches_;
  const int64_t batches_;  // micro-batches, if each is a batch
  const Connections& connections_;
  const int64_t first_row_, global_batch_, fewest_classes_;
  LowerOptions options_;
  LocalGraph local_;
  RedistributionLowering redistribution_;
  LocalValues values_;
  StageTransfers transfers_;
  StepSums sums_;
  GradientSyncLowering sync_;
  std::map<Phase, std::vector<Assign>> assigns_;
  std::map<std::string, ValueId> rows_;  // this device's rows of metrics
};

}  // namespace

LoweredStage lower_stage(const DecidedStage& decided,
                         const Connections& connections,
                         int64_t global_batch,
                         const LowerOptions& options) {
  return Lowering(decided, connections, global_batch, options).run();
}

}  // namespace medley
