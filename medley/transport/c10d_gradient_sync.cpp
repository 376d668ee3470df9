#include "medley/transport/c10d_gradient_sync.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "medley/base/at.h"
#include "medley/kernels/arguments.h"
#include "medley/kernels/gradient_sync_run.h"
#include "medley/kernels/tensor_buffer.h"

namespace medley {
namespace {

// Above the tags of lanes (c10d_transport.cpp).
constexpr int kFirstTag = 1 << 24;
// The thread waits as long as its waiter, which has the time-out.
constexpr std::chrono::hours kPatience{24 * 7};

}  // namespace

struct C10dGradientSyncs::Job {
  Exchange exchange;
  Waiting waiting;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
  std::vector<Buffer> outputs;
  std::exception_ptr error;

  void finish(std::exception_ptr cause) {
    const std::scoped_lock lock(mutex);
    error = std::move(cause);
    is_done = true;
    changed.notify_all();
  }
};

class C10dGradientSyncs::JobPending final : public Pending {
 public:
  explicit JobPending(std::shared_ptr<Job> job) : job_(std::move(job)) {}

  std::vector<Buffer> wait() override {
    constexpr std::chrono::milliseconds kSlice{20};  // delay of noticing abort()
    const auto end = std::chrono::steady_clock::now() + job_->waiting.timeout;
    std::unique_lock lock(job_->mutex);
    while (!job_->changed.wait_for(lock, kSlice, [&] { return job_->is_done; })) {
      if (auto cause = job_->waiting.abort->cause())
        throw Error(Blame::kEnvironment, "aborted: " + *cause);
      if (std::chrono::steady_clock::now() > end) throw job_->waiting.late();
    }
    if (job_->error) std::rethrow_exception(job_->error);
    return std::move(job_->outputs);
  }

 private:
  std::shared_ptr<Job> job_;
};

C10dGradientSyncs::C10dGradientSyncs(Group group,
                                     std::vector<int> everybody,
                                     const at::Device& device,
                                     std::shared_ptr<Abort> abort)
    : group_(std::move(group)),
      everybody_(std::move(everybody)),
      device_(device),
      abort_(std::move(abort)) {}

C10dGradientSyncs::~C10dGradientSyncs() {
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
    if (!queue_.empty()) abort_->set("the transport is gone");
  }
  changed_.notify_all();
}

std::unique_ptr<Pending> C10dGradientSyncs::post(Exchange exchange, Waiting waiting) {
  auto job = std::make_shared<Job>();
  job->exchange = std::move(exchange);
  job->waiting = std::move(waiting);
  if (!device_.is_cpu()) {
    run(*job);
    return std::make_unique<JobPending>(std::move(job));
  }
  const std::scoped_lock lock(mutex_);
  if (!thread_.joinable()) thread_ = std::jthread([this] { run_all(); });
  queue_.push_back(job);
  changed_.notify_all();
  return std::make_unique<JobPending>(std::move(job));
}

void C10dGradientSyncs::run_all() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ended_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = queue_.front();
    }
    run(*job);
    const std::scoped_lock lock(mutex_);
    queue_.pop_front();
  }
}

// Exchanges one round of messages of these lengths, [from * members + to]. Posts all receives
// before the first send: a Gloo connection also carries the receiver's readiness.
Tensors C10dGradientSyncs::exchange(const Job& job,
                                    const Tensors& sent,
                                    const std::vector<int64_t>& elements,
                                    int tag) {
  const std::vector<int>& members = job.exchange.group;
  const size_t n = members.size(), me = at(job.exchange.me);
  const auto options = at::TensorOptions(to_scalar_type(job.exchange.dtype)).device(device_);
  const auto rank = [&](size_t member) {
    return static_cast<int>(std::ranges::find(everybody_, members[member]) - everybody_.begin());
  };
  Tensors received(n);
  std::vector<Work> messages;
  if (!device_.is_cpu()) group_->startCoalescing(device_.type());
  for (size_t i = 1; i < n; ++i) {
    const size_t from = (me + n - i) % n;
    const int64_t length = elements[from * n + me];
    if (length == 0) continue;
    received[from] = at::empty({length}, options);
    std::vector<at::Tensor> one{received[from]};
    messages.push_back(group_->recv(one, rank(from), tag));
  }
  for (size_t i = 1; i < n; ++i) {
    const size_t to = (me + i) % n;
    if (!sent[to].defined()) continue;
    std::vector<at::Tensor> one{sent[to]};
    messages.push_back(group_->send(one, rank(to), tag));
  }
  if (!device_.is_cpu()) messages = {group_->endCoalescing(device_.type())};
  Waiting patient = job.waiting;
  patient.timeout = kPatience;
  medley::finish(messages, patient);
  return received;
}

// Sends no gradient sync after a failed one: a receiver of only some messages would mistake the
// next ones for them.
void C10dGradientSyncs::run(Job& job) {
  if (failed_) return job.finish(failed_);
  try {
    const at::NoGradGuard no_grad;
    const std::shared_ptr<const GradientSync> sync = job.exchange.sync;
    Tensors inputs;
    for (const Buffer& buffer : job.exchange.inputs) inputs.push_back(to_tensor(buffer));
    job.exchange.inputs.clear();  // sent tensors may be freed
    const at::ScalarType dtype = to_scalar_type(job.exchange.dtype);
    GradientSyncRun own(*sync, job.exchange.me, std::move(inputs), dtype, device_);
    const SyncTraffic traffic = traffic_of(*sync);
    const Tensors first = exchange(job, own.first(), traffic.first, kFirstTag);
    const Tensors second = exchange(job, own.second(first), traffic.second, kFirstTag + 1);
    for (const at::Tensor& tensor : own.outputs(second)) job.outputs.push_back(to_buffer(tensor));
    job.finish(nullptr);
  } catch (const Error&) {
    failed_ = std::current_exception();
  } catch (const std::exception& cause) {
    failed_ = std::make_exception_ptr(job.waiting.error(cause));
  }
  if (failed_) job.finish(failed_);
}

}  // namespace medley
