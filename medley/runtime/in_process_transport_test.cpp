#include "medley/runtime/in_process_transport.h"

#include <gmock/gmock.h>

#include <thread>

#include "medley/base/error.h"
#include "medley/runtime/null_executor.h"

namespace medley {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Exchange reduce(std::vector<int> group, int me, std::string name = "reduce w") {
  Exchange exchange;
  exchange.group = std::move(group);
  exchange.me = me;
  exchange.name = std::move(name);
  exchange.bytes_per_element = 4;
  exchange.bytes = 8;
  exchange.inputs = {null_buffer(DType::kF32, {2})};
  return exchange;
}

std::vector<int64_t> shape(const Buffer& buffer) {
  return static_cast<NullTensor*>(buffer.get())->shape;
}

std::string message_of_wait(Pending& pending) {
  try {
    pending.wait();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class InProcess : public ::testing::Test {
 protected:
  NullExecutor executor_;
  SteadyClock clock_;
  InProcessTransport transport_{executor_, clock_, milliseconds(50)};
};

TEST_F(InProcess, UnequalChunksAreGathered) {
  Exchange a = reduce({0, 1}, 0), b = reduce({0, 1}, 1);
  a.kind = b.kind = CommunicationKind::kAllGather;
  a.receive = b.receive = {2, 0};
  b.inputs = {null_buffer(DType::kF32, {0})};
  auto first = transport_.post(a), second = transport_.post(b);
  EXPECT_THAT(shape(first->wait()[0]), ElementsAre(2));
  EXPECT_THAT(shape(second->wait()[0]), ElementsAre(2));
}

// Posts never wait, and groups are independent.
TEST_F(InProcess, ManyExchangesAreUnderWay) {
  std::vector<std::unique_ptr<Pending>> pending;
  for (int me : {0, 1})
    for (const char* name : {"a", "b", "c"})
      pending.push_back(transport_.post(reduce({0, 1}, me, name)));
  auto lonely = transport_.post(reduce({0, 2}, 0));
  for (auto& each : pending) EXPECT_EQ(message_of_wait(*each), "no error");
}

TEST_F(InProcess, OtherOrderIsFound) {
  auto first = transport_.post(reduce({0, 1}, 0, "a"));
  auto second = transport_.post(reduce({0, 1}, 1, "b"));
  const auto what =
      AllOf(HasSubstr("exchange 0 of devices [0, 1]"), HasSubstr("device 0 has a; device 1 has b"));
  EXPECT_THAT(message_of_wait(*second), what);
  EXPECT_THAT(message_of_wait(*first), what);
}

// Gloo would abort the process of the receiver, or leave a stale tail.
TEST_F(InProcess, OtherLengthIsFoundBeforeAllHaveCome) {
  auto first = transport_.post(reduce({0, 1, 2}, 0));
  Exchange longer = reduce({0, 1, 2}, 2);
  longer.bytes = 12;
  auto second = transport_.post(longer);
  EXPECT_THAT(message_of_wait(*first), HasSubstr("8 bytes; device 2 has reduce w, 12 bytes"));
}

// Eight elements: four of each owner; to another device, only the first's.
TEST_F(InProcess, OtherCellsAreFound) {
  const auto sync = [](std::vector<int> owners) {
    Exchange exchange = reduce({0, 1}, 0, "sync w");
    exchange.kind = CommunicationKind::kGradientSync;
    SyncTensor tensor;
    for (int i = 0; i < 2; ++i) {
      const Runs runs{4 * i, 4, {}, {}};
      tensor.push_back({4, {{0, runs}, {1, runs}}, {{owners[static_cast<size_t>(i)], runs}}});
    }
    exchange.sync = std::make_shared<const GradientSync>(
        GradientSync{{{{0}, {0}}, {{0}, {0}}}, {std::make_shared<const SyncTensor>(tensor)}});
    return exchange;
  };
  auto first = transport_.post(sync({0, 1}));
  Exchange other = sync({0, 0});
  other.me = 1;
  auto second = transport_.post(other);
  const auto what = AllOf(HasSubstr("device 0 has sync w, 1 tensors, [0, 4, 4, 0] and"),
                          HasSubstr("device 1 has sync w, 1 tensors, [0, 0, 8, 0] and"));
  EXPECT_THAT(message_of_wait(*second), what);
  EXPECT_THAT(message_of_wait(*first), what);
}

TEST_F(InProcess, TimeOutNamesMissingDevices) {
  auto pending = transport_.post(reduce({4, 5, 6}, 1));
  auto other = transport_.post(reduce({4, 5, 6}, 0));
  EXPECT_EQ(message_of_wait(*pending),
            "over devices [4, 5, 6]: not posted within 50 ms by devices [6]");
}

TEST_F(InProcess, AbortEndsWaitsNowAndLater) {
  InProcessTransport transport(executor_, clock_, std::chrono::minutes(1));
  auto pending = transport.post(reduce({0, 1}, 0));
  std::jthread aborter([&] {
    std::this_thread::sleep_for(milliseconds(5));
    transport.abort("device 1 is gone");
    transport.abort("a consequence");
  });
  EXPECT_EQ(message_of_wait(*pending), "aborted: device 1 is gone");
  EXPECT_EQ(message_of_wait(*transport.post(reduce({0}, 0))), "aborted: device 1 is gone");
}

// The executor's error reaches all of the group, not only the combining device.
TEST_F(InProcess, FailedCombinationReachesAll) {
  Exchange a = reduce({0, 1}, 0), b = reduce({0, 1}, 1);
  a.kind = b.kind = CommunicationKind::kReduceScatter;
  a.send = b.send = {9, 9};  // the inputs have 2
  auto first = transport_.post(a), second = transport_.post(b);
  EXPECT_THAT(message_of_wait(*first), HasSubstr("check failed"));
  EXPECT_THAT(message_of_wait(*second), HasSubstr("check failed"));
}

TEST_F(InProcess, InputsAreLetGoWhenCombined) {
  Exchange exchange = reduce({0}, 0);
  const std::weak_ptr<void> input = exchange.inputs[0];
  auto pending = transport_.post(std::move(exchange));
  EXPECT_TRUE(input.expired());
}

}  // namespace
}  // namespace medley
