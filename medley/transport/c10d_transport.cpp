#include "medley/transport/c10d_transport.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <algorithm>
#include <future>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/kernels/arguments.h"
#include "medley/kernels/combine.h"
#include "medley/kernels/tensor_buffer.h"
#include "medley/transport/c10d_gradient_sync.h"

namespace medley {
namespace {

// PyTorch 2.13 has new names for _allgather_base and alltoall_base, which 2.11 lacks.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

using Lengths = std::vector<int64_t>;

constexpr std::chrono::milliseconds kSlice{20};  // delay of noticing abort()

int64_t total(const Lengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

// Returns the member of each rank of the process group, whose ranks are sorted.
std::vector<size_t> members_by_rank(const std::vector<int>& devices) {
  std::vector<size_t> order(devices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(
      order.begin(), order.end(), [&](size_t a, size_t b) { return devices[a] < devices[b]; });
  return order;
}

Lengths reorder(const Lengths& lengths, const std::vector<size_t>& order) {
  Lengths result;
  for (size_t i : order) result.push_back(lengths[i]);
  return result;
}

std::vector<size_t> inverse(const std::vector<size_t>& order) {
  std::vector<size_t> result(order.size());
  for (size_t i = 0; i < order.size(); ++i) result[order[i]] = i;
  return result;
}

// Cuts a flat tensor into pieces of these lengths and reorders them.
at::Tensor reorder_pieces(const at::Tensor& flat,
                          const Lengths& lengths,
                          const std::vector<size_t>& order) {
  if (std::is_sorted(order.begin(), order.end())) return flat;
  const Tensors pieces = flat.split_with_sizes(lengths);
  Tensors result;
  for (size_t i : order) result.push_back(pieces[i]);
  return at::cat(result);
}

// A collective in flight, and the conversion of its output to that of the exchange.
class C10dPending final : public Pending {
 public:
  C10dPending(Exchange exchange, Waiting waiting)
      : exchange_(std::move(exchange)), waiting_(std::move(waiting)) {}

  Error error(const std::exception& cause) const { return waiting_.error(cause); }

  // Starts a transfer in a process group of all devices: `ranks[member]` there. Its messages have
  // the lane as tag, so that lanes are independent.
  void start_transfer(c10d::ProcessGroup& group,
                      const std::vector<int>& ranks,
                      const at::Device& device) {
    const int tag = exchange_.lane + 1;
    if (exchange_.inputs.empty()) {
      output_ = at::empty({total(exchange_.receive)},
                          at::TensorOptions(to_scalar_type(exchange_.dtype)).device(device));
      const Tensors pieces = output_.split_with_sizes(exchange_.receive);
      for (size_t from = 0; from < ranks.size(); ++from) {
        if (exchange_.receive[from] == 0) continue;
        std::vector<at::Tensor> one{pieces[from]};
        messages_.push_back(group.recv(one, ranks[from], tag));
      }
      return;
    }
    inputs_ = to_tensor(exchange_.inputs.at(0))
                  .reshape({-1})
                  .contiguous()
                  .split_with_sizes(exchange_.send);
    exchange_.inputs.clear();
    for (size_t to = 0; to < ranks.size(); ++to) {
      if (exchange_.send[to] == 0) continue;
      std::vector<at::Tensor> one{inputs_[to]};
      messages_.push_back(group.send(one, ranks[to], tag));
    }
  }

  void start(c10d::ProcessGroup& group) {
    for (const Buffer& buffer : exchange_.inputs) inputs_.push_back(to_tensor(buffer));
    exchange_.inputs.clear();  // no extra reference to overwritable tensors
    MEDLEY_CHECK(!inputs_.empty());
    if (exchange_.kind == CommunicationKind::kAllReduce) return start_all_reduce(group);
    MEDLEY_CHECK(inputs_.size() == 1);
    order_ = members_by_rank(exchange_.group);
    const Lengths& sent = exchange_.send;
    const auto me = at(exchange_.me);
    switch (exchange_.kind) {
      case CommunicationKind::kAllGather:
        return start_all_gather(group);
      case CommunicationKind::kReduceScatter:
        return start_all_to_all(group, sent, Lengths(sent.size(), sent.at(me)));
      default:
        return start_all_to_all(group, sent, exchange_.receive);
    }
  }

  std::vector<Buffer> wait() override {
    const at::NoGradGuard no_grad;
    if (work_) finish_work();
    if (!messages_.empty()) {
      finish(messages_, waiting_);
      messages_.clear();
      inputs_.clear();
    }
    if (auto cause = waiting_.abort->cause())
      throw Error(Blame::kEnvironment, "aborted: " + *cause);
    if (exchange_.kind == CommunicationKind::kTransfer && !output_.defined()) return {};
    return traits_of(exchange_.kind).is_whole() ? split_bucket() : one_output();
  }

 private:
  void start_all_reduce(c10d::ProcessGroup& group) {
    for (const at::Tensor& tensor : inputs_) shapes_.push_back(tensor.sizes().vec());
    if (inputs_.size() == 1) {
      at::Tensor& only = inputs_[0];
      output_ =
          is_unique(only) && only.is_contiguous() ? only : only.clone(at::MemoryFormat::Contiguous);
    } else {
      Tensors flat;
      for (const at::Tensor& tensor : inputs_) flat.push_back(tensor.reshape({-1}));
      output_ = at::cat(flat);
    }
    inputs_.clear();
    if (output_.numel() == 0) return;
    std::vector<at::Tensor> one{output_.view({-1})};
    c10d::AllreduceOptions options;
    options.reduceOp = exchange_.reduce == Reduce::kMax ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    work_ = group.allreduce(one, options);
  }

  void start_all_gather(c10d::ProcessGroup& group) {
    const Lengths& lengths = exchange_.receive;
    const auto me = at(exchange_.me);
    MEDLEY_CHECK_EQ(inputs_[0].numel(), lengths.at(me));
    if (total(lengths) == 0) {
      output_ = inputs_[0].reshape({-1});
      return;
    }
    const bool equal = std::all_of(
        lengths.begin(), lengths.end(), [&](int64_t each) { return each == lengths[0]; });
    const at::Tensor chunk = inputs_[0].reshape({-1}).contiguous();
    // Gloo's ring of two is a pair that sends before it receives: see start_messages().
    if (chunk.is_cpu() && (!equal || lengths.size() == 2))
      return start_messages(group, Tensors(lengths.size(), chunk), lengths);
    if (!equal) return start_uneven_gather(group, chunk, lengths);
    inputs_[0] = chunk;
    received_ = lengths;
    output_ = at::empty({total(lengths)}, chunk.options());
    work_ = group._allgather_base(output_, inputs_[0]);
  }

  // Receives each shard directly into the output: NCCL makes one broadcast of each, all in
  // parallel, without extra memory.
  void start_uneven_gather(c10d::ProcessGroup& group,
                           const at::Tensor& chunk,
                           const Lengths& lengths) {
    received_ = reorder(lengths, order_);
    output_ = at::empty({total(lengths)}, chunk.options());
    std::vector<std::vector<at::Tensor>> pieces{output_.split_with_sizes(received_)};
    inputs_[0] = chunk;
    work_ = group.allgather(pieces, inputs_);
  }

  void start_all_to_all(c10d::ProcessGroup& group, const Lengths& send, const Lengths& receive) {
    MEDLEY_CHECK_EQ(inputs_[0].numel(), total(send));
    if (inputs_[0].is_cpu())
      return start_messages(
          group, inputs_[0].reshape({-1}).contiguous().split_with_sizes(send), receive);
    inputs_[0] = reorder_pieces(inputs_[0].reshape({-1}), send, order_).contiguous();
    received_ = reorder(receive, order_);
    output_ = at::empty({total(receive)}, inputs_[0].options());
    Lengths out = received_, in = reorder(send, order_);
    work_ = group.alltoall_base(output_, inputs_[0], out, in);
  }

  // Sends messages from each to each over Gloo. Posts all receives before the first send: a pair
  // has one connection, on which a receiver also announces that it is ready. Gloo's own all-to-all
  // sends first, so the later member's "ready" is queued behind its own data:
  //
  //   first    ready     (waits)                 data ---------------->
  //   second      data ----------------> ready
  //
  // A pair would then use one direction at a time: 229 ms measured, against 142 ms possible and 149
  // ms in this way.
  void start_messages(c10d::ProcessGroup& group, Tensors send, const Lengths& receive) {
    const auto me = at(exchange_.me);
    output_ = at::empty({total(receive)}, send.at(me).options());
    const Tensors pieces = output_.split_with_sizes(receive);
    const std::vector<size_t> ranks = inverse(order_);
    for (size_t i = 1; i < ranks.size(); ++i) {
      const size_t from = (me + ranks.size() - i) % ranks.size();
      if (receive[from] == 0) continue;
      std::vector<at::Tensor> one{pieces[from]};
      messages_.push_back(group.recv(one, static_cast<int>(ranks[from]), 0));
    }
    for (size_t i = 1; i < ranks.size(); ++i) {
      const size_t to = (me + i) % ranks.size();
      if (send[to].numel() == 0) continue;
      std::vector<at::Tensor> one{send[to]};
      messages_.push_back(group.send(one, static_cast<int>(ranks[to]), 0));
    }
    at::Tensor own = pieces[me];
    own.copy_(send[me]);
    inputs_ = std::move(send);
  }

  // Cuts a wait of Gloo into slices, so that abort() ends it. NCCL only makes the stream wait and
  // has its own watchdog.
  void finish_work() {
    try {
      if (!output_.is_cpu()) {
        work_->wait();
      } else {
        const auto end = std::chrono::steady_clock::now() + waiting_.timeout;
        while (!finished_within_slice()) {
          if (auto cause = waiting_.abort->cause())
            throw Error(Blame::kEnvironment, "aborted: " + *cause);
          if (std::chrono::steady_clock::now() > end) throw waiting_.late();
        }
      }
    } catch (const Error&) {
      throw;
    } catch (const std::exception& cause) {
      if (auto first = waiting_.abort->cause())
        throw Error(Blame::kEnvironment, "aborted: " + *first);
      throw error(cause);
    }
    work_.reset();
    inputs_.clear();
  }

  bool finished_within_slice() {
    try {
      return work_->wait(kSlice);
    } catch (const std::exception&) {
      // It may have completed after the slice, which is no failure: if it has failed, the second
      // wait throws its own error.
      return work_->isCompleted() && work_->wait(kSlice);
    }
  }

  std::vector<Buffer> split_bucket() {
    std::vector<Buffer> outputs;
    int64_t offset = 0;
    for (const auto& shape : shapes_) {
      int64_t count = 1;
      for (int64_t size : shape) count *= size;
      outputs.push_back(to_buffer(
          shapes_.size() == 1 ? std::move(output_) : output_.narrow(0, offset, count).view(shape)));
      offset += count;
    }
    output_.reset();
    return outputs;
  }

  std::vector<Buffer> one_output() {
    at::Tensor result = std::move(output_);
    if (!received_.empty()) result = reorder_pieces(result, received_, inverse(order_));
    if (exchange_.kind == CommunicationKind::kReduceScatter) {
      const auto members = static_cast<int64_t>(exchange_.group.size());
      result = reduce_in_order(result.view({members, -1}).unbind(0), exchange_.reduce);
    }
    return {to_buffer(std::move(result))};
  }

  Exchange exchange_;
  Waiting waiting_;
  std::vector<size_t> order_;  // members by rank
  Lengths received_;           // output pieces, by rank
  std::vector<std::vector<int64_t>> shapes_;
  Tensors inputs_;  // kept until done
  at::Tensor output_;
  Work work_;                   // or
  std::vector<Work> messages_;  // these
};

// Destroys groups on another thread. A group waits for its threads, and Gloo may block a send over
// an ended connection until the group's own time-out, minutes later.
void let_go(std::map<std::vector<int>, Group> groups) {
  constexpr std::chrono::seconds kEnough(1);
  std::packaged_task<void()> task([groups = std::move(groups)]() mutable { groups.clear(); });
  const std::future<void> done = task.get_future();
  std::thread(std::move(task)).detach();
  done.wait_for(kEnough);
}

class C10dTransport final : public Transport {
 public:
  C10dTransport(std::map<std::vector<int>, std::string> names,
                std::chrono::milliseconds timeout,
                const at::Device& device,
                const NetworkNames& texts,
                std::vector<int> connections)
      : names_(std::move(names)),
        timeout_(timeout),
        device_(device),
        texts_(std::make_shared<NetworkNames>(texts)),
        connections_(std::move(connections)) {
    for (const auto& [devices, name] : names_)
      if (devices.size() > everybody_.size()) everybody_ = devices;
  }
  ~C10dTransport() override {
    for (int connection : connections_) close(connection);
    syncs_.reset();
    if (abort_->cause() || !connections_.empty()) let_go(std::move(groups_));
  }

  std::unique_ptr<Pending> post(Exchange exchange) override {
    const at::NoGradGuard no_grad;
    if (auto cause = abort_->cause()) throw Error(Blame::kEnvironment, "aborted: " + *cause);
    const bool transfers = exchange.kind == CommunicationKind::kTransfer;
    Waiting waiting{abort_, timeout_, texts_, over(exchange.group, *texts_)};
    if (exchange.kind == CommunicationKind::kGradientSync)
      return syncs().post(std::move(exchange), std::move(waiting));
    Group group = find(transfers ? everybody_ : exchange.group);
    std::vector<int> ranks;
    if (transfers)
      for (int device : exchange.group)
        ranks.push_back(static_cast<int>(std::find(everybody_.begin(), everybody_.end(), device) -
                                         everybody_.begin()));
    auto pending = std::make_unique<C10dPending>(std::move(exchange), std::move(waiting));
    try {
      if (transfers)
        pending->start_transfer(*group, ranks, device_);
      else
        pending->start(*group);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& cause) {
      throw pending->error(cause);
    }
    return pending;
  }

  void abort(const std::string& cause) override {
    abort_->set(cause);
    for (int connection : connections_) shutdown(connection, SHUT_RDWR);
    const std::scoped_lock lock(mutex_);
    for (const auto& [devices, group] : groups_) {
      try {
        group->abort();
      } catch (const std::exception&) {
        // Not every backend supports this; the waits end anyway.
      }
    }
  }

 private:
  C10dGradientSyncs& syncs() {
    Group group = find(everybody_);
    const std::scoped_lock lock(mutex_);
    if (!syncs_) syncs_.emplace(std::move(group), everybody_, device_, abort_);
    return *syncs_;
  }

  Group find(std::vector<int> devices) {
    std::sort(devices.begin(), devices.end());
    const std::scoped_lock lock(mutex_);
    if (auto found = groups_.find(devices); found != groups_.end()) return found->second;
    const auto name = names_.find(devices);
    if (name == names_.end())
      throw Error(Blame::kUs,
                  fmt::format("no process group for devices [{}]", fmt::join(devices, ", ")));
    return groups_[devices] = c10d::resolve_process_group(name->second);
  }

  std::map<std::vector<int>, std::string> names_;
  std::vector<int> everybody_;  // the largest group
  std::chrono::milliseconds timeout_;
  at::Device device_;
  std::shared_ptr<const NetworkNames> texts_;
  std::vector<int> connections_;  // sockets
  std::shared_ptr<Abort> abort_ = std::make_shared<Abort>();
  std::mutex mutex_;  // guards the following
  std::map<std::vector<int>, Group> groups_;
  std::optional<C10dGradientSyncs> syncs_;
};

}  // namespace

std::unique_ptr<Transport> make_c10d_transport(std::map<std::vector<int>, std::string> groups,
                                               std::chrono::milliseconds timeout,
                                               const at::Device& device,
                                               const NetworkNames& names,
                                               std::vector<int> connections) {
  return std::make_unique<C10dTransport>(
      std::move(groups), timeout, device, names, std::move(connections));
}

}  // namespace medley
