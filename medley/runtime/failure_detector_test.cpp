#include "medley/runtime/failure_detector.h"
#include "medley/base/at.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "medley/base/error.h"
#include "medley/testing/in_memory_store.h"

namespace medley {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;

// Counts a device's reads.
class CountingStore final : public Store {
 public:
  explicit CountingStore(std::unique_ptr<Store> inner) : inner_(std::move(inner)) {}
  void set(const std::string& key, const std::string& value) override { inner_->set(key, value); }
  std::string set_first(const std::string& key, const std::string& value) override {
    return inner_->set_first(key, value);
  }
  void append(const std::string& key, const std::string& text) override {
    inner_->append(key, text);
  }
  std::optional<std::string> get(const std::string& key) override {
    ++reads;
    return inner_->get(key);
  }
  std::string wait(const std::string& key, std::chrono::milliseconds timeout) override {
    return inner_->wait(key, timeout);
  }

  int reads = 0;

 private:
  std::unique_ptr<Store> inner_;
};

constexpr int kDeadAfter = 10;  // heartbeats

// Live devices, with heartbeats in turn.
class Devices {
 public:
  explicit Devices(int count) {
    std::vector<int> all(at(count));
    std::iota(all.begin(), all.end(), 0);
    for (int device : all) {
      stores_.push_back(std::make_unique<CountingStore>(store_.connect(device)));
      detectors_.push_back(std::make_unique<FailureDetector>(
          *stores_.back(),
          FailureDetectorOptions{.generation = 1,
                                 .device = device,
                                 .devices = all,
                                 .link = "eth0",
                                 .heartbeat_timeout = kDeadAfter,
                                 .heartbeat_timeout_text = "5 s"}));
    }
    living_ = all;
  }

  // Advances by one heartbeat. Returns the most reads of a device in it.
  int beat() {
    for (auto& store : stores_) store->reads = 0;
    for (int look = 0; look < 2; ++look)
      for (int device : living_)
        if (auto failure = detectors_[at(device)]->look(calls_[device]))
          failures_[device] = *failure;
    int most = 0;
    for (auto& store : stores_) most = std::max(most, store->reads);
    return most;
  }
  // Returns the number of beats, at most `most`, until some device has seen a failure.
  int beats_until_failure(int most) {
    for (int count = 1; count <= most; ++count) {
      beat();
      if (!failures_.empty()) return count;
    }
    return most + 1;
  }
  void kill(const std::vector<int>& devices) {
    for (int device : devices) std::erase(living_, device);
  }
  void finish(const std::vector<int>& devices) {
    for (int device : devices) detectors_[at(device)]->finish(calls_[device]);
    kill(devices);
  }
  void revive(int device) { living_.push_back(device); }
  void write(const std::string& key, const std::string& value) {
    store_.connect(-1)->set(key, value);
  }

  JointCalls& calls(int device) { return calls_[device]; }
  // All devices make the call and return.
  void call(const std::string& name) {
    for (int device : living_) {
      calls_[device].begin(name);
      calls_[device].end();
    }
  }

  const std::map<int, Failure>& failures() const { return failures_; }
  const std::vector<int>& living() const { return living_; }
  FailureDetector& operator[](int device) { return *detectors_[at(device)]; }

 private:
  InMemoryStore store_;
  std::vector<std::unique_ptr<CountingStore>> stores_;
  std::vector<std::unique_ptr<FailureDetector>> detectors_;
  std::vector<int> living_;
  std::map<int, Failure> failures_;
  std::map<int, JointCalls> calls_;
};

std::vector<int> range(int first, int end) {
  std::vector<int> result(at(end - first));
  std::iota(result.begin(), result.end(), first);
  return result;
}

// 256 devices that each read all heartbeats would read 65,536 keys a period.
TEST(FailureDetector, ReadsFourKeysAPeriodAtMost) {
  Devices devices(256);
  std::vector<int> most;
  for (int i = 0; i < 30; ++i) most.push_back(devices.beat());
  devices.finish(range(3, 4));
  for (int i = 0; i < 5; ++i) most.push_back(devices.beat());
  devices.finish(range(20, 220));
  for (int i = 0; i < 30; ++i) most.push_back(devices.beat());
  EXPECT_THAT(most, Each(Le(4)));
  EXPECT_TRUE(devices.failures().empty());
}

// Neighbours in the ring, separate devices, and one next to finished ones.
TEST(FailureDetector, ReportsAllDevicesThatStopTogether) {
  Devices devices(256);
  for (int i = 0; i < 7; ++i) devices.beat();
  devices.finish(range(90, 140));
  devices.kill({17, 18, 19, 140, 255});
  EXPECT_LE(devices.beats_until_failure(100), kDeadAfter + 2);
  devices.beat();
  ASSERT_EQ(devices.failures().size(), devices.living().size());
  const Failure& first = devices.failures().begin()->second;
  EXPECT_EQ(first.device, 17);
  EXPECT_EQ(first.cause,
            "no sign of life for 5 s, nor of device 18, device 19, device 140, device 255, says "
            "device 16: their processes were killed or their links are dead");
  for (const auto& [device, failure] : devices.failures()) EXPECT_EQ(failure, first) << device;
}

TEST(FailureDetector, EveryDeviceIsLookedAt) {
  for (int dead = 0; dead < 5; ++dead) {
    Devices devices(5);
    for (int i = 0; i < 3; ++i) devices.beat();
    devices.kill({dead});
    EXPECT_LE(devices.beats_until_failure(100), kDeadAfter + 1);
    EXPECT_EQ(devices.failures().begin()->second.device, dead);
    EXPECT_THAT(devices.failures().begin()->second.cause,
                AllOf(HasSubstr("its process was killed"), Not(HasSubstr("nor of"))));
  }
}

// No device is left between the last two.
TEST(FailureDetector, FinishedDevicesDoNotHideFailures) {
  Devices devices(64);
  devices.beat();
  std::vector<int> finished = range(0, 64);
  std::erase(finished, 10);
  std::erase(finished, 40);
  devices.finish(finished);
  for (int i = 0; i < 30; ++i) devices.beat();
  EXPECT_TRUE(devices.failures().empty());
  devices.kill({40});
  EXPECT_LE(devices.beats_until_failure(100), kDeadAfter + 1);
  EXPECT_EQ(devices.failures().at(10).device, 40);
}

TEST(FailureDetector, LastDeviceDoesNotWait) {
  Devices devices(3);
  devices.beat();
  devices.finish({0, 2});
  for (int i = 0; i < 3 * kDeadAfter; ++i) devices.beat();
  EXPECT_TRUE(devices.failures().empty());
}

// A device that returns in time was not dead, however often.
TEST(FailureDetector, DeviceThatResumesItsHeartbeatIsAlive) {
  Devices devices(4);
  for (int pause = 0; pause < 4; ++pause) {
    devices.beat();
    devices.kill({2});
    for (int i = 0; i < kDeadAfter - 1; ++i) devices.beat();
    devices.revive(2);
  }
  EXPECT_TRUE(devices.failures().empty());
}

// The parent of the processes knows names, but no generations and numbers.
TEST(FailureDetector, TheFirstFailureIsThatOfTheJob) {
  InMemoryStore store;
  const auto connection = store.connect(0);
  FailureDetectorOptions options{
      .generation = 7, .device = 1, .devices = {0, 1}, .names = {"a", "b"}};
  FailureDetector detector(*connection, options);
  detector.publish({7, 1, "forward 0", "", "no power", Blame::kUs});
  detector.publish({7, 0, "", "reduce w", "peer lost"});
  EXPECT_EQ(connection->get("failure"),
            R"({"blame":"medley","cause":"b: forward 0: no power","device":"b",)"
            R"("in_exchange":false,"told_by":"b"})");
}

TEST(FailureDetector, TheFirstFailureStays) {
  Devices devices(3);
  devices.beat();
  EXPECT_EQ(devices[1].publish({1, 1, "forward 0", "", "no power"}).cause, "no power");
  EXPECT_EQ(devices[2].publish({1, 2, "", "", "peer lost"}).cause, "no power");
  devices.beat();
  EXPECT_EQ(devices.failures().at(0).cause, "no power");
}

// One device wants to read the parameters, the others train on.
TEST(FailureDetector, CallsThatDoNotFitAreNamedAtOnce) {
  for (int one : {0, 3}) {
    Devices devices(4);
    for (int i = 0; i < 3; ++i) devices.call("step()");
    devices.beat();
    for (int device : devices.living())
      devices.calls(device).begin(device == one ? "parameters()" : "step()");
    EXPECT_LE(devices.beats_until_failure(10), 2);
    const Failure& first = devices.failures().begin()->second;
    EXPECT_EQ(first.device, std::nullopt);
    EXPECT_EQ(first.blame, Blame::kCaller);
    EXPECT_THAT(first.cause,
                AllOf(ContainsRegex(fmt::format("device {} (is )?in parameters\\(\\)", one)),
                      ContainsRegex("device [0-3] (is )?in step\\(\\)"),
                      HasSubstr(": all processes have to make the same calls")));
  }
}

// A fast device is a call ahead, and some are between two.
TEST(FailureDetector, CallsThatFitAreNotNamed) {
  Devices devices(3);
  devices.calls(0).begin("step()");
  devices.calls(0).end();
  devices.calls(0).begin("parameters()");
  devices.calls(1).begin("step()");
  for (int i = 0; i < 3 * kDeadAfter; ++i) devices.beat();
  EXPECT_TRUE(devices.failures().empty());
}

// Its process lives on, so no closed connection informs the others.
TEST(FailureDetector, WaitForAFinishedDeviceIsReported) {
  Devices devices(4);
  devices.call("step()");
  devices.finish({2});
  for (int i = 0; i < 5; ++i) devices.beat();
  EXPECT_TRUE(devices.failures().empty());
  for (int device : devices.living()) devices.calls(device).begin("step()");
  EXPECT_LE(devices.beats_until_failure(10), 2);
  EXPECT_EQ(devices.failures().begin()->second.cause,
            "device 2 has finished, device 1 waits for it in step(): all processes have to make "
            "the same calls");
}

// Devices do not return from the last call at the same time.
TEST(FailureDetector, FirstFinishedDeviceIsNotWaitedFor) {
  Devices devices(3);
  for (int device : devices.living()) devices.calls(device).begin("save_model()");
  devices.calls(0).end();
  devices.finish({0});
  for (int i = 0; i < 5; ++i) devices.beat();
  EXPECT_TRUE(devices.failures().empty());
}

// Any host that reaches the store can write to it.
TEST(FailureDetector, ValuesThatNoDeviceWroteAreNamed) {
  Devices devices(2);
  devices.write("generation/1/failure", "{not json");
  devices.beat();
  EXPECT_THAT(devices.failures().at(1).cause,
              HasSubstr("generation/1/failure: found \"{not json\", expected what a device"));
}

}  // namespace
}  // namespace medley
