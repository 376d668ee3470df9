#include "medley/runtime/watchdog.h"

#include <gmock/gmock.h>

#include "medley/base/error.h"
#include "medley/testing/in_memory_store.h"

namespace medley {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

WatchdogOptions options(int device, int count, milliseconds heartbeat_timeout) {
  WatchdogOptions options{.generation = 2, .device = device, .devices = {}};
  for (int i = 0; i < count; ++i) options.devices.push_back(i);
  options.poll = options.heartbeat = milliseconds(5);
  options.heartbeat_timeout = heartbeat_timeout;
  options.grace = milliseconds(20);
  return options;
}

// A watchdog that records its actions.
struct Device {
  Device(InMemoryStore& store, const WatchdogOptions& watch)
      : connection(store.connect(watch.device)),
        watchdog(
            *connection,
            watch,
            [this](const auto& cause) { note("abort", cause); },
            [this](const auto& cause, Blame) { note("exit", cause); }) {}

  void note(const std::string& action, const std::string& cause) {
    const std::scoped_lock lock(mutex);
    actions[action] = cause;
    changed.notify_all();
  }
  // Waits for the action and returns its cause.
  std::string cause_of(const std::string& action) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(30), [&] { return actions.contains(action); });
    return actions[action];
  }
  bool has(const std::string& action) {
    const std::scoped_lock lock(mutex);
    return actions.contains(action);
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> actions;
  std::unique_ptr<Store> connection;
  Watchdog watchdog;
};

constexpr milliseconds kNever{60000};

TEST(Watchdog, BeatsAsOftenAsItTakes) {
  const WatchdogOptions usual, soon = with_heartbeats({.heartbeat_timeout = milliseconds(200)});
  EXPECT_EQ(soon.heartbeat, milliseconds(50));
  EXPECT_EQ(soon.poll, milliseconds(50));
  const WatchdogOptions late = with_heartbeats({.heartbeat_timeout = milliseconds(2000)});
  EXPECT_EQ(late.heartbeat, usual.heartbeat);
  EXPECT_EQ(late.poll, usual.poll);
}

TEST(Watchdog, FailureOfOneEndsAllWithTheSameCause) {
  InMemoryStore store;
  Device a(store, options(0, 3, kNever)), b(store, options(1, 3, kNever)),
      c(store, options(2, 3, kNever));
  b.watchdog.fail("forward 2", "gather h", "no memory");
  for (Device* device : {&a, &b, &c}) {
    EXPECT_EQ(device->cause_of("abort"), "device 1: forward 2: gather h: no memory");
    EXPECT_EQ(device->cause_of("exit"), "device 1: forward 2: gather h: no memory");
  }
}

// b's report is a consequence of a's failure, though it may not know.
TEST(Watchdog, FirstCauseStays) {
  InMemoryStore store;
  Device a(store, options(0, 2, kNever)), b(store, options(1, 2, kNever));
  a.watchdog.fail("forward 0", "", "no power");
  EXPECT_EQ(b.watchdog.fail("forward 0", "gather h", "peer lost").cause, "no power");
  EXPECT_EQ(b.cause_of("exit"), "device 0: forward 0: no power");
}

// A finished device closes its connections, the only sign to the others' exchanges.
TEST(Watchdog, FinishedDeviceIsTheCauseOfFailedExchanges) {
  InMemoryStore store;
  Device a(store, options(0, 2, kNever));
  {
    Device b(store, options(1, 2, kNever));
    b.watchdog.finish();
  }
  a.watchdog.begin("step()");
  const Failure first = a.watchdog.fail("forward 0", "gather h", "connection closed");
  EXPECT_THAT(first.cause, HasSubstr("device 1 has finished, device 0 waits for it in step()"));
  EXPECT_EQ(first.blame, Blame::kCaller);
}

// A killed process stops its heartbeat without a report.
TEST(Watchdog, SilentDeviceIsNoticed) {
  InMemoryStore store;
  Device a(store, options(0, 2, milliseconds(300)));
  { Device killed(store, options(1, 2, milliseconds(300))); }
  EXPECT_THAT(a.cause_of("exit"), AllOf(HasSubstr("device 1: "), HasSubstr("no sign of life")));
}

// The reader needs the machine and the cable, not numbers.
TEST(Watchdog, NamesDevicesAndTheLinkBetweenThem) {
  InMemoryStore store;
  const auto named = [](int device) {
    WatchdogOptions result = options(device, 2, milliseconds(300));
    result.names = {"fast/0/0", "slow/0/0"};
    result.link = "link to 10.0.0.1:29500 through eth0";
    return result;
  };
  Device a(store, named(0));
  { Device killed(store, named(1)); }
  EXPECT_EQ(a.cause_of("exit"),
            "slow/0/0: link to 10.0.0.1:29500 through eth0: no sign of life for 300 ms, says "
            "fast/0/0: its process was killed or its link is dead");
  store.lose(0);
  Device cut(store, named(0));
  cut.watchdog.begin("step()");
  EXPECT_THAT(cut.cause_of("exit"),
              ::testing::StartsWith("fast/0/0: link to 10.0.0.1:29500 through eth0: "));
}

TEST(Watchdog, FinishedDeviceIsNotMissed) {
  InMemoryStore store;
  Device a(store, options(0, 2, milliseconds(100)));
  {
    Device b(store, options(1, 2, milliseconds(100)));
    b.watchdog.finish();
  }
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_EQ(a.watchdog.first_failure(), std::nullopt);
}

// A member cut off from the store ends too if it waits, because it no longer receives failures.
TEST(Watchdog, LostStoreEndsTheDevice) {
  InMemoryStore store;
  Device a(store, options(0, 1, milliseconds(100)));
  a.watchdog.begin("step()");
  store.lose(0);
  EXPECT_THAT(a.cause_of("exit"), HasSubstr("has lost its connection"));
}

// The process that serves the store has finished first, and this one writes files.
TEST(Watchdog, LoneDeviceNeedsNoStore) {
  InMemoryStore store;
  Device a(store, options(0, 1, milliseconds(20)));
  a.watchdog.begin("step()");
  a.watchdog.end();
  store.lose(0);
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(a.watchdog.first_failure(), std::nullopt);
}

// The device's own thread has handled the failure and leaves.
TEST(Watchdog, DeviceThatLeavesWithinTheGraceIsNotEnded) {
  InMemoryStore store;
  WatchdogOptions patient = options(0, 1, kNever);
  patient.grace = std::chrono::minutes(1);
  Device a(store, patient);
  a.watchdog.fail("update", "", "no");
  EXPECT_EQ(a.cause_of("abort"), "device 0: update: no");
  a.watchdog.finish();
  EXPECT_FALSE(a.has("exit"));
}

// Failures of an earlier generation do not concern this one.
TEST(Watchdog, GenerationsAreSeparate) {
  InMemoryStore store;
  WatchdogOptions old = options(0, 1, kNever);
  old.generation = 1;
  Device before(store, old);
  before.watchdog.fail("", "", "no");
  Device after(store, options(0, 1, kNever));
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_FALSE(after.has("abort"));
}

}  // namespace
}  // namespace medley
