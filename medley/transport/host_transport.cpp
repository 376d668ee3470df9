#include "medley/transport/host_transport.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "medley/base/error.h"
#include "medley/kernels/tensor_buffer.h"

namespace medley {
namespace {

using Tensors = std::vector<at::Tensor>;
using Posted = std::unique_ptr<Pending>;

class HostPending final : public Pending {
 public:
  HostPending(std::future<Posted> posted, std::function<at::Tensor(const at::Tensor&)> from_host)
      : posted_(std::move(posted)), from_host_(std::move(from_host)) {}

  std::vector<Buffer> wait() override {
    pending_ = posted_.get();  // the GPU completes or fails by itself
    std::vector<Buffer> outputs;
    for (const Buffer& each : pending_->wait()) {
      const at::Tensor tensor = to_tensor(each);
      outputs.push_back(to_buffer(tensor.defined() ? from_host_(tensor) : tensor));
    }
    return outputs;
  }

  std::optional<std::pair<Nanoseconds, Nanoseconds>> times() override {
    return pending_ ? pending_->times() : std::nullopt;
  }

 private:
  std::future<Posted> posted_;  // by the inner transport
  std::function<at::Tensor(const at::Tensor&)> from_host_;
  Posted pending_;
};

class HostTransport final : public Transport {
 public:
  HostTransport(std::unique_ptr<Transport> inner, HostCopier copier)
      : inner_(std::move(inner)), copier_(std::move(copier)), thread_([this] { post_all(); }) {}

  ~HostTransport() override {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Posts receive-only transfers immediately: they need no copy, and a lane has one direction on
  // each side. All other exchanges keep their order, even if this device sends no data, as on other
  // devices.
  std::unique_ptr<Pending> post(Exchange exchange) override {
    const at::NoGradGuard no_grad;
    if (exchange.inputs.empty() && exchange.kind == CommunicationKind::kTransfer) {
      std::promise<Posted> posted;
      posted.set_value(inner_->post(std::move(exchange)));
      return std::make_unique<HostPending>(posted.get_future(), copier_.from_host);
    }
    Tensors inputs;
    for (const Buffer& each : exchange.inputs) inputs.push_back(to_tensor(each));
    exchange.inputs.clear();
    std::function<Tensors()> copied = [] { return Tensors{}; };
    if (!inputs.empty()) copied = copier_.to_host(std::move(inputs));
    std::packaged_task<Posted()> task(
        [this, exchange = std::move(exchange), bring = std::move(copied)]() mutable {
          return post_copied(std::move(exchange), std::exchange(bring, nullptr));
        });
    auto pending = std::make_unique<HostPending>(task.get_future(), copier_.from_host);
    {
      const std::scoped_lock lock(mutex_);
      queue_.push_back(std::move(task));
    }
    changed_.notify_all();
    return pending;
  }

  void abort(const std::string& cause) override { inner_->abort(cause); }

 private:
  // Posts in the callers' order, as the other devices do.
  void post_all() {
    for (;;) {
      std::packaged_task<Posted()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ended_ || !queue_.empty(); });
        if (queue_.empty()) return;
        task = std::move(queue_.front());
        queue_.pop_front();
      }
      task();
    }
  }

  Posted post_copied(Exchange exchange, const std::function<Tensors()>& bring) {
    const at::NoGradGuard no_grad;
    try {
      for (at::Tensor& each : bring()) exchange.inputs.push_back(to_buffer(std::move(each)));
    } catch (const std::exception& cause) {
      throw Error(Blame::kEnvironment, exchange.name + ": copied to the host: " + cause.what());
    }
    return inner_->post(std::move(exchange));
  }

  std::unique_ptr<Transport> inner_;
  HostCopier copier_;
  std::mutex mutex_;  // guards the two below
  std::deque<std::packaged_task<Posted()>> queue_;
  bool ended_ = false;
  std::condition_variable changed_;
  std::thread thread_;
};

// Copies tensors to the host. Keeps them until then, so that their memory is neither overwritten
// nor reused.
Tensors copied(const Tensors& tensors, const c10::Event& computed, const c10::Stream& copies) {
  const c10::StreamGuard guard(copies);
  computed.block(copies);
  Tensors found;
  for (const at::Tensor& each : tensors) {
    if (!each.defined() || each.is_cpu()) {
      found.push_back(each);
      continue;
    }
    at::Tensor host = at::empty(each.sizes(), each.options().device(at::kCPU).pinned_memory(true));
    host.copy_(each, /*non_blocking=*/true);
    found.push_back(std::move(host));
  }
  copies.synchronize();
  return found;
}

}  // namespace

HostCopier make_host_copier(const c10::Device& device) {
  HostCopier copier;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream copies = guard.getStreamFromGlobalPool(device);
  copier.to_host = [device, guard, copies](Tensors tensors) -> std::function<Tensors()> {
    auto computed = std::make_shared<c10::Event>(device.type());
    computed->record(guard.getStream(device));
    return [tensors = std::move(tensors), computed, copies]() mutable {
      Tensors found = copied(tensors, *computed, copies);
      tensors.clear();
      return found;
    };
  };
  copier.from_host = [device](const at::Tensor& tensor) { return tensor.to(device); };
  return copier;
}

std::unique_ptr<Transport> make_host_transport(std::unique_ptr<Transport> inner,
                                               HostCopier copier) {
  return std::make_unique<HostTransport>(std::move(inner), std::move(copier));
}

}  // namespace medley
