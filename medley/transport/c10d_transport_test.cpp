#include "medley/transport/c10d_transport.h"
#include "medley/base/at.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "medley/kernels/tensor_buffer.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

class Done final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return true; }
};

// A group of three GPUs that only records its inputs. Tensors are on `meta`, which is not the host
// either.
class NotingGroup final : public c10d::ProcessGroup {
 public:
  explicit NotingGroup(int rank) : c10d::ProcessGroup(rank, 3) {}

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions&) override {
    for (const at::Tensor& piece : outputs.at(0)) {
      received.push_back(piece.numel());
      offsets.push_back(piece.storage_offset());
    }
    sent.push_back(inputs.at(0).numel());
    return c10::make_intrusive<Done>();
  }
  c10::intrusive_ptr<c10d::Work> all_to_all_single(at::Tensor&,
                                                   at::Tensor& input,
                                                   std::vector<int64_t>&,
                                                   std::vector<int64_t>&,
                                                   const c10d::AllToAllOptions&) override {
    sent.push_back(input.numel());
    return c10::make_intrusive<Done>();
  }

  std::vector<int64_t> sent, received, offsets;  // elements
};

at::Tensor gather(const c10::intrusive_ptr<NotingGroup>& group,
                  const std::vector<int>& devices,
                  int me,
                  const std::vector<int64_t>& lengths) {
  c10d::register_process_group("noting", group);
  const auto transport = make_c10d_transport(
      {{{0, 1, 2}, "noting"}}, std::chrono::milliseconds(1000), at::Device(at::kMeta));
  Exchange exchange;
  exchange.kind = CommunicationKind::kAllGather;
  exchange.group = devices;
  exchange.me = me;
  exchange.receive = lengths;
  exchange.name = "gather";
  exchange.inputs = {
      to_buffer(at::empty({lengths.at(at(me))}, at::TensorOptions(at::kFloat).device(at::kMeta)))};
  const at::Tensor whole = to_tensor(transport->post(std::move(exchange))->wait().at(0));
  c10d::unregister_process_group("noting");
  return whole;
}

// An all-to-all would need a copy of the own shard for each member: 3 x 50 elements.
TEST(C10dTransport, AnUnevenGatherOfGpusKeepsNothingButTheWhole) {
  const auto group = c10::make_intrusive<NotingGroup>(1);
  EXPECT_EQ(gather(group, {0, 1, 2}, 1, {20, 50, 0}).numel(), 70);
  EXPECT_THAT(group->sent, ElementsAre(50));
  EXPECT_THAT(group->received, ElementsAre(20, 50, 0));
  EXPECT_THAT(group->offsets, ElementsAre(0, 20, 70));
}

// Ranks are in the order of devices, members in that of the mesh.
TEST(C10dTransport, AnUnevenGatherIsByRank) {
  const auto group = c10::make_intrusive<NotingGroup>(2);
  EXPECT_EQ(gather(group, {2, 0, 1}, 0, {30, 10, 20}).numel(), 60);
  EXPECT_THAT(group->sent, ElementsAre(30));
  EXPECT_THAT(group->received, ElementsAre(10, 20, 30));
}

}  // namespace
}  // namespace medley
