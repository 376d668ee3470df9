#include "medley/torch/host_transport.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "medley/base/error.h"
#include "medley/torch/tensor_buffer.h"

namespace medley {
namespace {

using Tensors = std::vector<at::Tensor>;
using Bring = std::function<Tensors()>;

// An exchange that waits for its inputs, then that of the inner transport.
struct Job {
  Exchange exchange;
  Bring bring;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_posted = false;
  std::unique_ptr<Pending> pending;
  std::exception_ptr error;

  void finish(std::unique_ptr<Pending> posted, std::exception_ptr cause) {
    const std::scoped_lock lock(mutex);
    pending = std::move(posted);
    error = std::move(cause);
    is_posted = true;
    changed.notify_all();
  }
};

class HostPending final : public Pending {
 public:
  HostPending(std::shared_ptr<Job> job, const HostCopier& copier)
      : job_(std::move(job)), copier_(copier) {}

  std::vector<Buffer> wait() override {
    {
      // The GPU comes so far by itself, or fails; it waits for nobody.
      std::unique_lock lock(job_->mutex);
      job_->changed.wait(lock, [&] { return job_->is_posted; });
    }
    if (job_->error) std::rethrow_exception(job_->error);
    std::vector<Buffer> outputs;
    for (const Buffer& each : job_->pending->wait()) {
      const at::Tensor tensor = to_tensor(each);
      outputs.push_back(to_buffer(tensor.defined() ? copier_.from_host(tensor) : tensor));
    }
    return outputs;
  }

  std::optional<std::pair<Nanoseconds, Nanoseconds>> times() override {
    return job_->pending ? job_->pending->times() : std::nullopt;
  }

 private:
  std::shared_ptr<Job> job_;
  HostCopier copier_;
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

  // Those that only receive are posted at once: nothing is copied for them, and the messages of a
  // lane have one direction on each side.
  std::unique_ptr<Pending> post(Exchange exchange) override {
    const at::NoGradGuard no_grad;
    auto job = std::make_shared<Job>();
    if (exchange.inputs.empty()) {
      job->finish(inner_->post(std::move(exchange)), nullptr);
      return std::make_unique<HostPending>(std::move(job), copier_);
    }
    Tensors inputs;
    for (const Buffer& each : exchange.inputs) inputs.push_back(to_tensor(each));
    exchange.inputs.clear();
    job->bring = copier_.to_host(std::move(inputs));
    job->exchange = std::move(exchange);
    {
      const std::scoped_lock lock(mutex_);
      queue_.push_back(job);
    }
    changed_.notify_all();
    return std::make_unique<HostPending>(std::move(job), copier_);
  }

  void abort(const std::string& cause) override { inner_->abort(cause); }

 private:
  // In the order in which they were posted, as the others post theirs.
  void post_all() {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ended_ || !queue_.empty(); });
        if (queue_.empty()) return;
        job = std::move(queue_.front());
        queue_.pop_front();
      }
      post_one(*job);
    }
  }

  void post_one(Job& job) {
    const at::NoGradGuard no_grad;
    try {
      for (at::Tensor& each : std::exchange(job.bring, nullptr)())
        job.exchange.inputs.push_back(to_buffer(std::move(each)));
      job.finish(inner_->post(std::move(job.exchange)), nullptr);
    } catch (const Error&) {
      job.finish(nullptr, std::current_exception());
    } catch (const std::exception& cause) {
      const std::string text = job.exchange.name + ": copied to the host: " + cause.what();
      job.finish(nullptr, std::make_exception_ptr(Error(Blame::kEnvironment, text)));
    }
  }

  std::unique_ptr<Transport> inner_;
  HostCopier copier_;
  std::mutex mutex_;  // of the two below
  std::deque<std::shared_ptr<Job>> queue_;
  bool ended_ = false;
  std::condition_variable changed_;
  std::thread thread_;
};

// Tensors on their way to the host. They are held until they are there, so that nothing overwrites
// them and their memory goes to nobody else.
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
  copier.to_host = [device, guard, copies](Tensors tensors) -> Bring {
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
