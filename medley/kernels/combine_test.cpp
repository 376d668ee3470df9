#include "medley/kernels/combine.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

namespace medley {
namespace {

using ::testing::ElementsAre;

// Returns a constant tensor on the host, or on another device: `meta`, which ATen distinguishes
// from the host like a second GPU. Tensors can be copied to it, but not back.
at::Tensor host(int64_t count, double value = 1) {
  return at::full({count}, value, at::TensorOptions(at::kFloat).device(at::kCPU));
}
at::Tensor other(int64_t count) { return host(count).to(at::kMeta); }

std::vector<at::DeviceType> devices(const std::vector<Tensors>& outputs) {
  std::vector<at::DeviceType> result;
  for (const Tensors& each : outputs) result.push_back(each.at(0).device().type());
  return result;
}

const std::vector<Executor::Lengths> kNone = {{{}, {}}, {{}, {}}};

TEST(Combine, SumsMeetOnTheFirstDevice) {
  const auto sums =
      combine(CommunicationKind::kAllReduce, Reduce::kSum, {{other(3)}, {host(3)}}, kNone);
  EXPECT_THAT(devices(sums), ElementsAre(at::kMeta, at::kMeta));
  EXPECT_EQ(sums[1][0].numel(), 3);
  const auto largest =
      combine(CommunicationKind::kAllReduce, Reduce::kMax, {{other(3)}, {host(3)}}, kNone);
  EXPECT_THAT(devices(largest), ElementsAre(at::kMeta, at::kMeta));
}

TEST(Combine, ShardsMeetOnTheFirstDevice) {
  const auto whole = combine(CommunicationKind::kAllGather,
                             Reduce::kSum,
                             {{other(2)}, {host(3)}},
                             {{{}, {2, 3}}, {{}, {2, 3}}});
  EXPECT_THAT(devices(whole), ElementsAre(at::kMeta, at::kMeta));
  EXPECT_EQ(whole[1][0].numel(), 5);
}

// [device] received pieces: device 0 gives 2 to itself and none to device 1.
TEST(Combine, PiecesGoToTheirReceivers) {
  const auto got = combine(CommunicationKind::kAllToAll,
                           Reduce::kSum,
                           {{other(2)}, {host(5)}},
                           {{{2, 0}, {2, 1}}, {{1, 4}, {0, 4}}});
  EXPECT_THAT(devices(got), ElementsAre(at::kMeta, at::kCPU));
  EXPECT_EQ(got[0][0].numel(), 3);
  EXPECT_EQ(got[1][0].numel(), 4);
}

TEST(Combine, PiecesOfSeveralSendersAreJoinedBeforeTheReceive) {
  const auto got = combine(CommunicationKind::kTransfer,
                           Reduce::kSum,
                           {{other(2)}, {host(3)}, {}},
                           {{{0, 0, 2}, {}}, {{0, 0, 3}, {}}, {{}, {2, 3, 0}}});
  EXPECT_TRUE(got[2].at(0).is_meta());
  EXPECT_EQ(got[2].at(0).numel(), 5);
}

TEST(Combine, OnlyWhatAnotherGpuHasMadeIsMoved) {
  const at::Device first("cuda:0"), second("cuda:1"), processor("cpu");
  EXPECT_TRUE(is_foreign(first, second));
  EXPECT_TRUE(is_foreign(first, processor));
  EXPECT_FALSE(is_foreign(first, first));
  EXPECT_FALSE(is_foreign(processor, first));  // scalars stay on the host
  const at::Tensor tensor = host(1);
  EXPECT_TRUE(arrived(tensor, first).is_same(tensor));
  EXPECT_FALSE(arrived({}, first).defined());
}

}  // namespace
}  // namespace medley
