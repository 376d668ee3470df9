#include "medley/measure/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "medley/base/error.h"

namespace medley {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

const Function& find(const LoweredStage& stage, FunctionKind kind) {
  for (const Function& function : stage.functions)
    if (function.kind == kind) return function;
  throw Error(Blame::kUs, "a call of a function that the stage does not have");
}

}  // namespace

DriftMeter::DriftMeter(const Program& program, int stage, const CostModel& costs)
    : stage_(program.stages.at(static_cast<size_t>(stage))), prices_(stage_.devices.size()) {
  for (size_t d = 0; d < stage_.devices.size(); ++d) {
    kinds_.push_back(costs.cluster().kind(stage_.devices[d]).name);
    for (const Call& call : stage_.calls)
      for (const Step& step : find(stage_, call.function).steps)
        if (const auto* segment = std::get_if<Segment>(&step))
          prices_[d].push_back(price(*segment, call.microbatch, static_cast<int>(d), costs));
  }
}

DriftMeter::Price DriftMeter::price(const Segment& segment,
                                    int microbatch,
                                    int device,
                                    const CostModel& costs) const {
  const auto d = static_cast<size_t>(device);
  const DeviceKind& kind = costs.cluster().kind(stage_.devices[d]);
  const std::vector<int64_t>& table = stage_.tables.at(static_cast<size_t>(microbatch)).at(d);
  std::map<WorkClass, Nanoseconds> by_class;
  Price result;
  for (OpId id : segment.ops) {
    const Op& op = stage_.graph.ops[static_cast<size_t>(id)];
    const Nanoseconds time = costs.op(kind, stage_.graph, op, table).value;
    result.time += time;
    by_class[work_class(op.name)] += time;
  }
  Nanoseconds most;
  for (const auto& [work_class, time] : by_class)
    if (time > most) {
      most = time;
      result.most = work_class;
    }
  return result;
}

void DriftMeter::add(int device, const StepReport& report) {
  const std::vector<Price>& prices = prices_.at(static_cast<size_t>(device));
  size_t next = 0;
  for (const TraceEvent& event : report.events) {
    if (event.stream != Stream::kCompute || event.category == kWaiting) continue;
    if (next == prices.size()) throw Error(Blame::kUs, "more segments than the program has");
    const Price& price = prices[next++];
    if (price.time <= Nanoseconds{}) continue;
    Samples& samples = samples_[{kinds_[static_cast<size_t>(device)], price.most}];
    samples.ratios.push_back(event.duration / price.time);
    samples.predicted += price.time;
    samples.measured += event.duration;
  }
  if (next != prices.size()) throw Error(Blame::kUs, "fewer segments than the program has");
  ++steps_;
}

std::vector<DriftRow> DriftMeter::rows() const {
  std::vector<DriftRow> rows;
  for (const auto& [key, samples] : samples_)
    rows.push_back({key.first,
                    key.second,
                    median(samples.ratios),
                    samples.predicted / steps_,
                    samples.measured / steps_,
                    static_cast<int64_t>(samples.ratios.size())});
  return rows;
}

std::string to_string(const std::vector<DriftRow>& rows) {
  std::string text = "ops      devices       predicted   measured   ratio\n";
  bool drifted = false;
  for (const DriftRow& row : rows) {
    text += fmt::format("{:<8} {:<12} {:>10} {:>10}   {:.2f}\n",
                        class_name(row.work_class),
                        row.kind,
                        to_string(row.predicted),
                        to_string(row.measured),
                        row.ratio);
    drifted = drifted || std::abs(row.ratio - 1) > kDriftLimit;
  }
  if (drifted)
    text += fmt::format(
        "Ops take other times than predicted (more than {:.0f} % off): profile again.\n",
        100 * kDriftLimit);
  return text;
}

}  // namespace medley
