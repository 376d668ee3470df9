#include "medley/transport/byte_messages.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "medley/transport/c10d_messages.h"

namespace medley {
namespace {

constexpr int kBytesTag = 7;  // the group has no other messages meanwhile

}  // namespace

// Posts all receives before the first send: a Gloo connection also carries the receiver's
// readiness.
std::vector<at::Tensor> exchange_bytes(const std::string& name,
                                       const std::vector<at::Tensor>& sent,
                                       const std::vector<int64_t>& lengths,
                                       std::chrono::milliseconds timeout) {
  const Waiting waiting{std::make_shared<Abort>(),
                        timeout,
                        std::make_shared<NetworkNames>(),
                        "messages of bytes in " + name};
  std::vector<at::Tensor> received(lengths.size());
  std::vector<Work> messages;
  try {
    const Group group = c10d::resolve_process_group(name);
    for (size_t rank = 0; rank < lengths.size(); ++rank) {
      if (lengths[rank] == 0) continue;
      received[rank] = at::empty({lengths[rank]}, at::kByte);
      std::vector<at::Tensor> one{received[rank]};
      messages.push_back(group->recv(one, static_cast<int>(rank), kBytesTag));
    }
    for (size_t rank = 0; rank < sent.size(); ++rank) {
      if (!sent[rank].defined()) continue;
      std::vector<at::Tensor> one{sent[rank]};
      messages.push_back(group->send(one, static_cast<int>(rank), kBytesTag));
    }
  } catch (const std::exception& cause) {
    throw waiting.error(cause);
  }
  finish(messages, waiting);
  return received;
}

}  // namespace medley
