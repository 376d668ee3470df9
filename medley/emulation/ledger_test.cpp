#include "medley/emulation/ledger.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <random>
#include <thread>

#include "medley/base/error.h"
#include "medley/network/collectives.h"

namespace medley {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Returns n nodes of one device on one switch with ports of 1 byte per nanosecond and 1 us of
// latency.
Topology flat(int n) {
  Cluster cluster;
  NodePool pool;
  pool.name = "p";
  pool.count = n;
  cluster.pools = {pool};
  cluster.devices = list_devices(cluster.pools);
  cluster.networks = {{"lan", false, {"p"}, 1e9, 1e-6, std::nullopt}};
  return Topology(cluster);
}

std::vector<RoundStep> steps_of(const std::vector<Message>& messages, int device) {
  std::vector<RoundStep> steps;
  for (const Message& message : messages) {
    if (message.from == device) steps.push_back({message.round, message.to, message.bytes, true});
    if (message.to == device) steps.push_back({message.round, message.from, message.bytes, false});
  }
  return steps;
}

std::vector<int> iota(int n) {
  std::vector<int> result;
  for (int i = 0; i < n; ++i) result.push_back(i);
  return result;
}

std::vector<RoundStep> all_reduce(const Topology& topology, int64_t bytes, int device) {
  return steps_of(
      cheapest({CommunicationKind::kAllReduce, iota(topology.num_devices()), {bytes}, 4}, topology)
          .messages,
      device);
}

void in_threads(int n, const std::function<void(int)>& run) {
  std::vector<std::thread> threads;
  for (int device = 0; device < n; ++device) threads.emplace_back(run, device);
  for (std::thread& thread : threads) thread.join();
}

// A small training run: uneven ops, two collectives in flight, messages between neighbours. Returns
// the device's observations.
std::vector<int64_t> train(Ledger& ledger, int device, int steps, unsigned delay_seed) {
  std::mt19937 work(static_cast<unsigned>(device) + 100),
      host(delay_seed * 31 + static_cast<unsigned>(device));
  const auto delay = [&] {
    if (delay_seed > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(host() % 3 == 0 ? host() % 2000 : 0));
  };
  const Topology& topology = ledger.topology();
  const int n = topology.num_devices();
  std::vector<int64_t> seen;
  ledger.join(device);
  for (int64_t step = 0; step < steps; ++step) {
    delay();
    ledger.compute(device, {static_cast<int64_t>(work() % 50'000)});
    const int first =
        ledger.post(device, {1, 2 * step}, n, all_reduce(topology, 40'000, device), "first");
    delay();
    ledger.compute(device, {static_cast<int64_t>(work() % 90'000)});
    const int second =
        ledger.post(device, {1, 2 * step + 1}, n, all_reduce(topology, 4'000, device), "second");
    delay();
    const int peer = device ^ 1;
    int third = -1;
    if (peer < n) {
      const std::vector<RoundStep> swap{{0, peer, 7'000 + device, true},
                                        {0, peer, 7'000 + peer, false}};
      third = ledger.post(device, {2 + static_cast<uint64_t>(device / 2), step}, 2, swap, "swap");
    }
    for (int exchange : {first, second, third}) {
      if (exchange < 0) continue;
      ledger.begin_wait(device, exchange);
      delay();
      const auto times = ledger.finish_wait(device, exchange);
      seen.insert(
          seen.end(),
          {times.start.value, times.end.value, times.complete.value, ledger.now(device).value});
    }
  }
  ledger.leave(device);
  return seen;
}

TEST(Ledger, HostDelaysChangeNoTime) {
  const int n = 5;
  const Topology topology = flat(n);
  std::vector<std::vector<std::vector<int64_t>>> runs;
  for (unsigned seed : {0u, 0u, 1u, 2u}) {
    const auto ledger = Ledger::create(topology);
    auto& seen = runs.emplace_back(n);
    in_threads(n, [&](int device) { seen[at(device)] = train(*ledger, device, 20, seed); });
  }
  EXPECT_GT(runs[0][0].back(), 20 * 70'000);
  EXPECT_THAT(runs, Each(runs[0]));
}

// Executes `run` per device in separate processes. Returns their exit codes.
std::vector<int> in_processes(int n, const std::function<int(int)>& run) {
  std::vector<pid_t> children;
  for (int device = 0; device < n; ++device) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 99;
      try {
        code = run(device);
      } catch (const std::exception& error) {
        fprintf(stderr, "%s\n", error.what());
      }
      _exit(code);
    }
    children.push_back(child);
  }
  std::vector<int> codes;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return codes;
}

const std::string& temporary_path() {
  static const std::string kPath =
      testing::TempDir() + "/medley-ledger-test-" + std::to_string(getpid());
  return kPath;
}

TEST(Ledger, ProcessesSeeTheSameTimesAsThreads) {
  const int n = 4;
  const Topology topology = flat(n);
  std::vector<std::vector<int64_t>> threads(n);
  const auto local = Ledger::create(topology);
  in_threads(n, [&](int device) { threads[at(device)] = train(*local, device, 20, 0); });
  const std::string path = temporary_path();
  const auto shared = Ledger::create(topology, path);
  const auto codes = in_processes(n, [&](int device) {
    const auto ledger = Ledger::open(topology, path);
    return train(*ledger, device, 20, 3) == threads[at(device)] ? 0 : 1;
  });
  EXPECT_THAT(codes, Each(0));
}

TEST(Ledger, IsOfOneCluster) {
  const Topology topology = flat(2), other = flat(3);
  const auto ledger = Ledger::create(topology, temporary_path());
  EXPECT_THROW(Ledger::open(other, temporary_path()), Error);
  EXPECT_THROW(Ledger::create(topology, temporary_path()), Error);
  EXPECT_THROW(Ledger::open(topology, temporary_path() + "-none"), Error);
}

TEST(Ledger, ItsFileGoesAwayWithIt) {
  const Topology topology = flat(2);
  {
    const auto ledger = Ledger::create(topology, temporary_path());
    EXPECT_TRUE(std::filesystem::exists(temporary_path()));
  }
  EXPECT_FALSE(std::filesystem::exists(temporary_path()));
}

// One device computes while the ring continues without it: both start at 0, the ring takes 2 rounds
// of 500 ns + 1 us, compute 10 us.
TEST(Ledger, CommunicationOverlapsWithCompute) {
  const Topology topology = flat(2);
  const auto ledger = Ledger::create(topology);
  std::vector<Nanoseconds> ends(2);
  in_threads(2, [&](int device) {
    ledger->join(device);
    const std::vector<RoundStep> ring{{0, 1 - device, 500, true},
                                      {0, 1 - device, 500, false},
                                      {1, 1 - device, 500, true},
                                      {1, 1 - device, 500, false}};
    const int exchange = ledger->post(device, {0, 0}, 2, ring, "ring");
    ledger->compute(device, {device == 0 ? 10'000 : 1'000});
    ledger->begin_wait(device, exchange);
    EXPECT_EQ(ledger->finish_wait(device, exchange).end, Nanoseconds{3'000});
    ends[at(device)] = ledger->now(device);
  });
  EXPECT_EQ(ends[0], Nanoseconds{10'000});
  EXPECT_EQ(ends[1], Nanoseconds{3'000});
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.blame(), Blame::kEnvironment);
    return error.what();
  }
  return "no error";
}

// Device 0 waits outside of the ledger, for instance at a barrier of the script: the watchdog names
// it.
TEST(Ledger, AWaitOutsideTheEmulationIsNamed) {
  const Topology topology = flat(2);
  LedgerOptions options;
  options.stall = std::chrono::milliseconds(300);
  const auto ledger = Ledger::create(topology, options);
  ledger->join(0);
  ledger->join(1);
  ledger->compute(0, {5'000'000});
  const int exchange = ledger->post(1, {0, 0}, 2, {}, "all_reduce w");
  ledger->begin_wait(1, exchange);
  EXPECT_THAT(error_of([&] { ledger->finish_wait(1, exchange); }),
              AllOf(HasSubstr("nobody has moved for 0."),
                    HasSubstr("p/0/0 holds the clock at 5"),
                    HasSubstr("p/1/0 waits (last posted: all_reduce w)")));
}

TEST(Ledger, ADeadlockIsNamed) {
  const Topology topology = flat(2);
  const auto ledger = Ledger::create(topology);
  std::vector<std::string> errors(2);
  in_threads(2, [&](int device) {
    ledger->join(device);
    const int exchange =
        ledger->post(device, {static_cast<uint64_t>(device), 0}, 2, {}, "half of a group");
    ledger->begin_wait(device, exchange);
    errors[at(device)] = error_of([&] { ledger->finish_wait(device, exchange); });
  });
  EXPECT_THAT(errors, Each(HasSubstr("nobody can go on")));
}

TEST(Ledger, AnAbortEndsWaits) {
  const Topology topology = flat(2);
  const auto ledger = Ledger::create(topology);
  ledger->join(0);
  ledger->join(1);
  const int exchange = ledger->post(0, {0, 0}, 2, {}, "x");
  ledger->begin_wait(0, exchange);
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ledger->abort("device 1: out of memory");
    ledger->abort("a second cause");
  });
  EXPECT_EQ(error_of([&] { ledger->finish_wait(0, exchange); }),
            "aborted: device 1: out of memory");
  aborter.join();
}

// Device 2 is killed midway. The others continue independent work, and receive its name when they
// wait for it.
TEST(Ledger, AKilledProcessLeaves) {
  const Topology topology = flat(3);
  const std::string path = temporary_path();
  const auto shared = Ledger::create(topology, path);
  const auto codes = in_processes(3, [&](int device) {
    const auto ledger = Ledger::open(topology, path);
    ledger->join(device);
    ledger->compute(device, {1'000});
    if (device == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      raise(SIGKILL);
    }
    const std::vector<RoundStep> swap{{0, 1 - device, 500, true}, {0, 1 - device, 500, false}};
    const int pair = ledger->post(device, {0, 0}, 2, swap, "pair");
    const int all = ledger->post(device, {1, 0}, 3, all_reduce(topology, 3000, device), "all");
    ledger->begin_wait(device, pair);
    if (ledger->finish_wait(device, pair).end != Nanoseconds{2'500}) return 1;
    ledger->begin_wait(device, all);
    const std::string error = error_of([&] { ledger->finish_wait(device, all); });
    return error.find("p/2/0 has died") != std::string::npos ? 0 : 2;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0, -SIGKILL}));
}

// 20 us of emulated time at 1000 real seconds per emulated second.
TEST(Ledger, PaceHoldsBackInRealTimeOnly) {
  const Topology topology = flat(1);
  LedgerOptions options;
  options.pace = 1000;
  const auto ledger = Ledger::create(topology, options);
  ledger->join(0);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    ledger->compute(0, {1'000});
    ledger->keep_pace(0);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(ledger->now(0), Nanoseconds{20'000});
  EXPECT_GE(took.count(), 0.0195);
}

}  // namespace
}  // namespace medley
