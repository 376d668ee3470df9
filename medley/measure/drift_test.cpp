#include "medley/measure/drift.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"
#include "medley/testing/example_program.h"

namespace medley {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

Cluster cluster() {
  Cluster cluster;
  const DeviceKind kind{"fast", {{DType::kF32, 1e9}}, {{DType::kF32, 1e9}}, 1e9, 1e6, 1e-6};
  cluster.pools.push_back({"fast", 2, 1, kind, false, 0});
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"fast"}, 1e9, 0, std::nullopt}};
  return cluster;
}

// Returns a device's report with segments that take `times` the predicted time.
StepReport report(const LoweredStage& stage, const CostModel& costs, double times) {
  StepReport result;
  for (const Call& call : stage.calls)
    for (const Function& function : stage.functions)
      if (function.kind == call.function)
        for (const Step& step : function.steps)
          if (const auto* segment = std::get_if<Segment>(&step)) {
            const Nanoseconds time = costs
                                         .ops(costs.cluster().kind(0),
                                              stage.graph,
                                              segment->ops,
                                              stage.tables[at(call.microbatch)][0])
                                         .value;
            TraceEvent event;
            event.duration = to_nanoseconds(to_seconds(time) * times);
            result.events.push_back(event);
            event.category = kWaiting;  // independent of ops
            result.events.push_back(event);
          }
  return result;
}

TEST(Drift, IsTheMedianRatioByKindAndClass) {
  const ExampleProgram example = data_parallel_program({300, 200}, 2);
  const CostModel costs(cluster());
  DriftMeter meter(example.program, costs);
  for (double times : {1.0, 1.1, 9.0})
    meter.add(0, 0, report(example.program.stages[0], costs, times));
  ASSERT_THAT(meter.rows(), SizeIs(1));
  EXPECT_EQ(meter.rows()[0].kind, "fast");
  EXPECT_EQ(meter.rows()[0].work_class, WorkClass::kMemory);
  EXPECT_NEAR(meter.rows()[0].ratio, 1.1, 1e-3);
  EXPECT_THAT(to_string(meter.rows()), Not(HasSubstr("profile again")));
}

// Times are per device of the type, not over all added devices.
TEST(Drift, TimesAreThoseOfADevice) {
  const ExampleProgram example = data_parallel_program({300, 300}, 1);
  Cluster two_kinds = cluster();
  DeviceKind slow = two_kinds.pools[0].kind;
  slow.name = "slow";
  two_kinds.pools[0].count = 1;
  two_kinds.pools.push_back({"slow", 1, 1, slow, false, 0});
  two_kinds.devices[1] = {"slow/0/0", 1, 0, 0};
  two_kinds.networks[0].connects = {"fast", "slow"};
  const CostModel costs(two_kinds);
  DriftMeter one(example.program, costs), both(example.program, costs);
  const StepReport step = report(example.program.stages[0], costs, 1.0);
  one.add(0, 0, step);
  both.add(0, 0, step);
  both.add(0, 1, step);
  ASSERT_THAT(both.rows(), SizeIs(2));
  EXPECT_EQ(both.rows()[0].predicted, one.rows()[0].predicted);
}

TEST(Drift, BeyondTheLimitItSaysWhatToDo) {
  const ExampleProgram example = data_parallel_program({300, 200}, 1);
  const CostModel costs(cluster());
  DriftMeter meter(example.program, costs);
  meter.add(0, 0, report(example.program.stages[0], costs, 0.7));
  EXPECT_THAT(to_string(meter.rows()), HasSubstr("profile again"));
}

TEST(Drift, RefusesTheStepOfAnotherProgram) {
  const ExampleProgram example = data_parallel_program({300, 200}, 1);
  const CostModel costs(cluster());
  DriftMeter meter(example.program, costs);
  EXPECT_THROW(meter.add(0, 0, {}), Error);
}

}  // namespace
}  // namespace medley
