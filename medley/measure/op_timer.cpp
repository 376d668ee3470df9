#include "medley/measure/op_timer.h"

#include <algorithm>

#include "medley/base/at.h"
#include "medley/ops/instance.h"
#include "medley/ops/rule.h"

namespace medley {
namespace {

LoweredStage stage_of(const Graph& single, int device) {
  LoweredStage stage;
  stage.devices = {device};
  stage.mesh = {1};
  stage.graph = single;
  stage.lifetimes.assign(single.values.size(), Lifetime::kMicrobatch);
  for (const Input& input : single.inputs) stage.lifetimes[at(input.value)] = Lifetime::kRun;
  stage.tables = {{{}}};
  return stage;
}

// Fresh values die; new values of operands (an updated parameter) replace them.
class SingleRun {
 public:
  SingleRun(const OpTimer& timer, const Graph& single)
      : timer_(timer),
        stage_(stage_of(single, timer.device)),
        run_frame_(timer.executor.make_frame(stage_)),
        frame_(timer.executor.make_frame(stage_)) {
    const Op& op = stage_.graph.ops[0];
    const bool is_view = work_class(op.name) == WorkClass::kView;
    std::vector<ValueId> dies;
    for (size_t r = 0; r < op.results.size(); ++r) {
      if (op.results[r] == kNone) continue;
      const ValueId place = is_view ? kNone : storage_operand(op, r);
      if (place == kNone)
        dies.push_back(op.results[r]);
      else
        replaced_.emplace_back(op.results[r], place);
    }
    for (const auto& [result, operand] : replaced_) dies.push_back(operand);
    stage_.functions = {{FunctionKind::kForward, {Segment{{0}, {dies}}}, {}}};
    stage_.calls = {{FunctionKind::kForward, 0}};
    segment_ = timer.executor.prepare(
        stage_, std::get<Segment>(stage_.functions[0].steps[0]), stage_.tables[0][0]);
    const int64_t bound = index_bound(single);
    for (const Input& input : single.inputs)
      timer.executor.write(
          stage_, frames(), input.value, timer.make_operand(type_of(single, input.value), bound));
  }

  Nanoseconds run(int launches) {
    const Nanoseconds start = timer_.clock.now();
    for (int i = 0; i < launches; ++i) {
      timer_.executor.run(*segment_, frames());
      for (const auto& [result, operand] : replaced_) {
        Buffer buffer = timer_.executor.read(stage_, frames(), result);
        timer_.executor.write(stage_, frames(), result, nullptr);
        timer_.executor.write(stage_, frames(), operand, std::move(buffer));
      }
    }
    if (timer_.synchronize) timer_.synchronize();
    return timer_.clock.now() - start;
  }

 private:
  Frames frames() const { return {run_frame_.get(), frame_.get()}; }

  const OpTimer& timer_;
  LoweredStage stage_;
  std::unique_ptr<Frame> run_frame_, frame_;
  std::unique_ptr<PreparedSegment> segment_;
  std::vector<std::pair<ValueId, ValueId>> replaced_;  // result -> operand
};

MeasuredTime mean(const OpTimer& timer, SingleRun& op) {
  const Nanoseconds start = timer.clock.now();
  Nanoseconds now = start;
  int64_t launches = 0;
  for (; now - start < timer.window; now = timer.clock.now(), launches += timer.launches)
    op.run(timer.launches);
  return {Nanoseconds{std::max<int64_t>(1, (now - start).value / launches)},
          static_cast<int>(launches / timer.launches)};
}

int64_t dim_of(const Graph& single, ValueId value, size_t dim) {
  const std::vector<Size>& shape = type_of(single, value).shape;
  return dim < shape.size() ? std::max<int64_t>(shape[dim].coefficient, 1) : 1;
}

}  // namespace

int64_t index_bound(const Graph& single) {
  const Op& op = single.ops.at(0);
  const std::string_view name = short_name(op);
  const std::vector<ValueId> values = operands(op);
  if (name == "embedding" || name == "embedding_select") return dim_of(single, values[0], 0);
  if (name.starts_with("embedding")) return dim_of(single, op.results[0], 0);
  // All experts, not the shard's: it gets its share of the tokens.
  if (name == "experts" || name == "experts_backward")
    return std::max<int64_t>(static_cast<int64_t>(number(op, op.arguments.size() - 1).value_or(1)),
                             1);
  // A bound within every indexable dim of every tensor.
  int64_t bound = int64_t{1} << 30;
  for (const Value& value : single.values)
    for (const Size& size : value.type.shape)
      if (is_floating(value.type.dtype)) bound = std::min(bound, size.coefficient);
  return std::max<int64_t>(bound, 1);
}

MeasuredTime measure(const OpTimer& timer, const Graph& single) {
  SingleRun op(timer, single);
  for (int i = 0; i < timer.warm_ups; ++i) op.run(timer.launches);
  if (timer.window > Nanoseconds{}) {
    MeasuredTime means[] = {mean(timer, op), mean(timer, op), mean(timer, op)};
    std::sort(std::begin(means), std::end(means), [](const MeasuredTime& a, const MeasuredTime& b) {
      return a.time < b.time;
    });
    return means[1];
  }
  std::vector<Nanoseconds> times;
  Nanoseconds total;
  while (static_cast<int>(times.size()) < timer.least ||
         (static_cast<int>(times.size()) < timer.most && total < timer.enough)) {
    times.push_back(op.run(timer.launches));
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  const Nanoseconds median = times[times.size() / 2];
  return {Nanoseconds{std::max<int64_t>(1, median.value / timer.launches)},
          static_cast<int>(times.size())};
}

}  // namespace medley
