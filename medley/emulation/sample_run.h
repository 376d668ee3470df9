#pragma once

// Runs a program for tests on an emulated cluster: a thread for every device, the null executor and
// the in-process transport under the decorators. Knows nothing of what is run.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/emulation/emulated_clock.h"
#include "medley/emulation/emulated_executor.h"
#include "medley/emulation/emulated_transport.h"
#include "medley/runtime/in_process_transport.h"
#include "medley/runtime/interpreter.h"
#include "medley/runtime/null_executor.h"

namespace medley {

struct EmulatedOutcome {
  std::vector<std::vector<TraceEvent>> events;  // [device], of all steps
  std::vector<int64_t> peaks;
  std::vector<std::string> errors;
};

// Sleeps in one of `one_of` calls, for less than `microseconds`; never for seed 0.
inline HostDelay random_delay(unsigned seed, unsigned one_of, unsigned microseconds) {
  if (seed == 0) return {};
  return [=, calls = std::make_shared<std::atomic<unsigned>>(0)] {
    std::mt19937 random(seed * 1000003 + (*calls)++);
    if (random() % one_of == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % microseconds));
  };
}

// Fills the inputs of a device of a stage's mesh before a step. `first`: there was no step before.
using Fill = std::function<void(Interpreter& interpreter, size_t stage, size_t device, bool first)>;

inline EmulatedOutcome run_emulated(const Program& program,
                                    const Cluster& cluster,
                                    const HiddenTruth& truth,
                                    const HostDelay& delay,
                                    int steps,
                                    const Fill& fill) {
  const Topology topology(cluster);
  const auto ledger = Ledger::create(topology);
  NullExecutor null;
  SteadyClock steady;
  InProcessTransport inner(null, steady, std::chrono::seconds(60));
  EmulatedTransport transport(inner, *ledger, delay);
  const size_t n = cluster.devices.size();
  EmulatedOutcome result{std::vector<std::vector<TraceEvent>>(n),
                         std::vector<int64_t>(n),
                         std::vector<std::string>(n)};
  const auto run_device = [&](size_t s, size_t i) {
    const int device = program.stages[s].devices[i];
    const auto d = at(device);
    try {
      ledger->join(device);
      EmulatedExecutor executor(null, *ledger, device, {truth, delay});
      EmulatedClock clock(*ledger, device);
      InterpreterOptions options;
      options.trace = true;
      Interpreter interpreter(
          program, static_cast<int>(s), static_cast<int>(i), executor, transport, clock, options);
      for (int step = 0; step < steps; ++step) {
        fill(interpreter, s, i, step == 0);
        for (TraceEvent& event : interpreter.run_step().events)
          result.events[d].push_back(std::move(event));
      }
      result.peaks[d] = executor.memory().peak();
      ledger->leave(device);
    } catch (const Error& error) {
      result.errors[d] = error.what();
      transport.abort(error.what());
    }
  };
  std::vector<std::thread> threads;
  for (size_t s = 0; s < program.stages.size(); ++s)
    for (size_t i = 0; i < program.stages[s].devices.size(); ++i)
      threads.emplace_back(run_device, s, i);
  for (std::thread& thread : threads) thread.join();
  return result;
}

}  // namespace medley
