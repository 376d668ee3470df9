// The interpreter's own cost: programs of 10,000 ops on the executor without computing.

#include <benchmark/benchmark.h>

#include "medley/runtime/in_process_transport.h"
#include "medley/runtime/interpreter.h"
#include "medley/runtime/null_executor.h"
#include "medley/testing/example_program.h"

namespace medley {
namespace {

constexpr int kOps = 10000;

// Times ops. The argument is their number between two communications (all-reduces of one device).
void chain(benchmark::State& state) {
  const ExampleProgram example = chain_program(kOps, static_cast<int>(state.range(0)));
  SteadyClock clock;
  NullExecutor executor;
  InProcessTransport transport(executor, clock, std::chrono::seconds(5));
  Interpreter interpreter(example.program, 0, 0, executor, transport, clock);
  const Buffer x = null_buffer(DType::kF32, {4});
  for (auto _ : state) {
    interpreter.set_batch(0, {{example.x, x}});
    interpreter.run_step();
  }
  state.counters["per_op"] = benchmark::Counter(
      kOps, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(chain)->Arg(kOps)->Arg(10)->Arg(1)->Unit(benchmark::kMicrosecond);

// Exchanges one device with itself: the cost of posting, meeting and waiting without a peer.
void exchange(benchmark::State& state) {
  SteadyClock clock;
  NullExecutor executor;
  InProcessTransport transport(executor, clock, std::chrono::seconds(5));
  Exchange all_reduce;
  all_reduce.group = {0};
  all_reduce.me = 0;
  all_reduce.name = "reduce";
  all_reduce.inputs = {null_buffer(DType::kF32, {4})};
  for (auto _ : state) benchmark::DoNotOptimize(transport.post(all_reduce)->wait());
}
BENCHMARK(exchange);

}  // namespace
}  // namespace medley
