#include "medley/runtime/device_threads.h"
#include "medley/base/at.h"

#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "medley/base/error.h"

namespace medley {
namespace {

using std::chrono::milliseconds;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Opens once, for all.
class Gate {
 public:
  void open() {
    const std::scoped_lock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

void nothing(const std::string&) {}

TEST(DeviceThreads, EveryThreadKeepsItsDevice) {
  DeviceThreads threads({"a", "b", "c"}, nothing);
  std::vector<std::thread::id> ids(3);
  threads.run([&](int i) { ids[at(i)] = std::this_thread::get_id(); });
  threads.run([&](int i) {
    EXPECT_EQ(ids[at(i)], std::this_thread::get_id())
        << "libraries keep pools and streams per thread";
  });
}

// b waits forever unless it is aborted; its own error is a consequence.
TEST(DeviceThreads, FirstFailureEndsTheOthersAndIsThrown) {
  Gate gate;
  std::string aborted_with;
  DeviceThreads threads({"a", "b"}, [&](const std::string& cause) {
    aborted_with = cause;
    gate.open();
  });
  EXPECT_EQ(message_of([&] {
              threads.run([&](int i) {
                if (i == 1) gate.pass();
                throw Error(Blame::kEnvironment, i == 1 ? "aborted" : "no power");
              });
            }),
            "a: no power");
  EXPECT_EQ(aborted_with, "a: no power");
}

TEST(DeviceThreads, TheNameStandsOnce) {
  DeviceThreads threads({"a"}, nothing);
  EXPECT_EQ(
      message_of([&] { threads.run([](int) { throw Error(Blame::kUs, "a: forward 0: no"); }); }),
      "a: forward 0: no");
}

// b does not react to the abort in time, is abandoned, and may end later or never.
TEST(DeviceThreads, ThreadThatDoesNotEndIsAbandoned) {
  auto gate = std::make_shared<Gate>();
  auto ended = std::make_shared<Gate>();
  {
    DeviceThreads threads({"a", "b"}, nothing, milliseconds(20));
    const auto body = [gate, ended](int i) {
      if (i == 0) throw Error(Blame::kUs, "no");
      gate->pass();
      ended->open();
    };
    EXPECT_EQ(message_of([&] { threads.run(body); }), "a: no; not ended 20 ms later: b");
    EXPECT_EQ(message_of([&] { threads.run(body); }), "still busy since an earlier failure: b");
  }
  gate->open();
  ended->pass();
}

TEST(DeviceThreads, CallersFromTwoThreadsAreRefusedAsThat) {
  auto gate = std::make_shared<Gate>();
  auto begun = std::make_shared<Gate>();
  DeviceThreads threads({"a"}, nothing, milliseconds(20));
  std::thread first([&] {
    threads.run([&](int) {
      begun->open();
      gate->pass();
    });
  });
  begun->pass();
  EXPECT_EQ(message_of([&] { threads.run([](int) {}); }),
            "another thread is calling the same devices: one at a time may");
  gate->open();
  first.join();
}

// A machine without further threads: the existing ones end, and the error names the missing one.
TEST(DeviceThreads, IfOneCannotBeMadeTheOthersEnd) {
  std::atomic<int> made = 0, alive = 0;
  const auto make_thread = [&](std::function<void()> body) {
    if (made++ == 2) throw std::system_error(EAGAIN, std::generic_category());
    ++alive;
    return std::thread([&, body = std::move(body)] {
      body();
      --alive;
    });
  };
  EXPECT_EQ(
      message_of([&] {
        const DeviceThreads threads({"a", "b", "c", "d"}, nothing, milliseconds(20), make_thread);
      }),
      "c: no thread for this device: Resource temporarily unavailable");
  EXPECT_EQ(alive, 0);
}

}  // namespace
}  // namespace medley
