#include "medley/transport/host_transport.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <future>

#include "medley/base/error.h"
#include "medley/kernels/tensor_buffer.h"

namespace medley {
namespace {

using ::testing::ElementsAre;

// Returns its inputs from wait().
class Echo final : public Transport {
 public:
  explicit Echo(std::vector<std::string>& posted) : posted_(posted) {}

  std::unique_ptr<Pending> post(Exchange exchange) override {
    posted_.push_back(exchange.name);
    if (exchange.name == "wrong") throw Error(Blame::kEnvironment, "no such group");
    return std::make_unique<Own>(std::move(exchange.inputs));
  }
  void abort(const std::string& cause) override { posted_.push_back("aborted: " + cause); }

 private:
  struct Own final : Pending {
    explicit Own(std::vector<Buffer> inputs) : inputs_(std::move(inputs)) {}
    std::vector<Buffer> wait() override { return std::move(inputs_); }
    std::vector<Buffer> inputs_;
  };
  std::vector<std::string>& posted_;
};

Exchange exchange(const std::string& name,
                  std::vector<double> values,
                  CommunicationKind kind = CommunicationKind::kAllReduce) {
  Exchange exchange;
  exchange.kind = kind;
  exchange.name = name;
  for (double each : values) exchange.inputs.push_back(to_buffer(at::full({2}, each)));
  return exchange;
}

double first_of(const Buffer& buffer) { return to_tensor(buffer)[0].item<double>(); }

// Its GPU adds 10 on the way to the host and 100 on the way back; it reaches `slow` on request.
struct Gpu {
  std::promise<void> released;
  HostCopier copier;

  Gpu() {
    copier.to_host = [ready = std::shared_future<void>(released.get_future())](Tensors given) {
      const bool slow = first_of(to_buffer(given.at(0))) == 1;
      return [=]() {
        if (slow) ready.wait();
        Tensors found;
        for (const at::Tensor& each : given) found.push_back(each.defined() ? each + 10 : each);
        return found;
      };
    };
    copier.from_host = [](const at::Tensor& tensor) { return tensor + 100; };
  }
  using Tensors = std::vector<at::Tensor>;
};

TEST(HostTransport, SendsArePostedInOrderOnceReady) {
  std::vector<std::string> posted;
  Gpu gpu;
  const auto transport = make_host_transport(std::make_unique<Echo>(posted), gpu.copier);
  const auto slow = transport->post(exchange("slow", {1, 2}));
  const auto fast = transport->post(exchange("fast", {3}));
  const auto received = transport->post(exchange("received", {}, CommunicationKind::kTransfer));
  const auto sync =
      transport->post(exchange("gradient_sync", {}, CommunicationKind::kGradientSync));
  EXPECT_THAT(posted, ElementsAre("received"));
  EXPECT_TRUE(received->wait().empty());
  gpu.released.set_value();
  EXPECT_EQ(first_of(fast->wait().at(0)), 113);
  const auto both = slow->wait();
  EXPECT_EQ(first_of(both.at(0)), 111);
  EXPECT_EQ(first_of(both.at(1)), 112);
  EXPECT_TRUE(sync->wait().empty());
  EXPECT_THAT(posted, ElementsAre("received", "slow", "fast", "gradient_sync"));
}

TEST(HostTransport, ErrorGoesToTheWaiter) {
  std::vector<std::string> posted;
  Gpu gpu;
  gpu.copier.to_host = [](std::vector<at::Tensor>) {
    return []() -> std::vector<at::Tensor> { throw std::runtime_error("illegal address"); };
  };
  const auto transport = make_host_transport(std::make_unique<Echo>(posted), gpu.copier);
  const auto pending = transport->post(exchange("sum", {1}));
  try {
    pending->wait();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "sum: copied to the host: illegal address");
    EXPECT_EQ(error.blame(), Blame::kEnvironment);
  }
  const auto wrong = make_host_transport(std::make_unique<Echo>(posted), Gpu().copier);
  const auto refused = wrong->post(exchange("wrong", {3}));
  EXPECT_THROW(refused->wait(), Error);
  wrong->abort("a peer is gone");
  EXPECT_THAT(posted, ElementsAre("wrong", "aborted: a peer is gone"));
}

}  // namespace
}  // namespace medley
