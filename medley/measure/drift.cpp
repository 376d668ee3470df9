#include "medley/measure/drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/program/walk.h"

namespace medley {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

DriftMeter::DriftMeter(const Program& program, const CostModel& costs) {
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const LoweredStage& stage = program.stages[s];
    for (size_t d = 0; d < stage.devices.size(); ++d) {
      DevicePrices& device = devices_[{static_cast<int>(s), static_cast<int>(d)}];
      DeviceKind kind = costs.cluster().kind(stage.devices[d]);
      kind.bf16_as = bf16_as(stage, d);
      device.kind = kind.name;
      walk(stage, [&](const Call& call, Position, const Segment& segment) {
        device.prices.push_back(
            price(stage, segment, stage.tables.at(at(call.microbatch)).at(d), kind, costs));
      });
    }
  }
}

DriftMeter::Price DriftMeter::price(const LoweredStage& stage,
                                    const Segment& segment,
                                    const std::vector<int64_t>& table,
                                    const DeviceKind& kind,
                                    const CostModel& costs) {
  std::map<WorkClass, Nanoseconds> by_class;
  Price result;
  for (OpId id : segment.ops) {
    const Op& op = stage.graph.ops[at(id)];
    const Nanoseconds time = costs.op(kind, stage.graph, op, table).value;
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

void DriftMeter::add(int stage, int device, const StepReport& report) {
  const auto& [kind, prices] = devices_.at({stage, device});
  size_t next = 0;
  for (const TraceEvent& event : report.events) {
    if (event.stream != Stream::kCompute || event.category == kWaiting) continue;
    if (next == prices.size()) throw Error(Blame::kUs, "more segments than the program has");
    const Price& price = prices[next++];
    if (price.time <= Nanoseconds{}) continue;
    Samples& samples = samples_[{kind, price.most}];
    samples.ratios.push_back(event.duration / price.time);
    samples.predicted += price.time;
    samples.measured += event.duration;
  }
  if (next != prices.size()) throw Error(Blame::kUs, "fewer segments than the program has");
  ++steps_[kind];
}

std::vector<DriftRow> DriftMeter::rows() const {
  std::vector<DriftRow> rows;
  for (const auto& [key, samples] : samples_)
    rows.push_back({key.first,
                    key.second,
                    median(samples.ratios),
                    samples.predicted / steps_.at(key.first),
                    samples.measured / steps_.at(key.first),
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
