#include "medley/runtime/null_executor.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"
#include "medley/testing/example_program.h"

namespace medley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Chain {
  Chain() : stage(example.program.stages[0]) {
    executor.write(stage, frames(), example.x, null_buffer(DType::kF32, {4}));
  }
  Frames frames() { return {run.get(), microbatch.get()}; }
  std::unique_ptr<PreparedSegment> prepare() {
    return executor.prepare(
        stage, std::get<Segment>(stage.functions[0].steps[0]), stage.tables[0][0]);
  }

  ExampleProgram example = chain_program(3, 3);
  LoweredStage& stage;
  ManualClock clock;
  NullExecutor executor{[](const auto&, OpId op, const auto&) { return Nanoseconds{op + 1}; },
                        clock};
  std::unique_ptr<Frame> run = executor.make_frame(stage), microbatch = executor.make_frame(stage);
};

TEST(NullExecutor, TakesTheTimeOfItsOps) {
  Chain chain;
  auto segment = chain.prepare();
  chain.executor.run(*segment, chain.frames());
  EXPECT_EQ(chain.clock.now(), Nanoseconds{1 + 2 + 3});
  EXPECT_EQ(chain.executor.num_run(), 3);
  EXPECT_EQ(num_values(*chain.microbatch), 1) << "all but the last have died";
}

// The first run has consumed x.
TEST(NullExecutor, EmptyOperandIsNamed) {
  Chain chain;
  auto segment = chain.prepare();
  chain.executor.run(*segment, chain.frames());
  try {
    chain.executor.run(*segment, chain.frames());
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "test.op: operand %0 is empty");
  }
}

TEST(NullExecutor, CombinesShapes) {
  NullExecutor executor;
  const auto outputs =
      executor.combine(CommunicationKind::kAllToAll,
                       Reduce::kSum,
                       {{null_buffer(DType::kF32, {3})}, {null_buffer(DType::kF32, {3, 3})}},
                       {{{1, 2}, {1, 4}}, {{4, 5}, {2, 5}}});
  const auto* of_first = static_cast<NullTensor*>(outputs[0][0].get());
  const auto* of_second = static_cast<NullTensor*>(outputs[1][0].get());
  EXPECT_THAT(of_first->shape, ElementsAre(5));
  EXPECT_THAT(of_second->shape, ElementsAre(7));
}

}  // namespace
}  // namespace medley
