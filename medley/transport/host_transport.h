#pragma once

// GPUs over a transport for host tensors, Gloo, by copies to and from the host. For GPUs of several
// vendors, GPUs together with CPUs, several processes on one GPU, and runs that lose processes.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "medley/runtime/transport.h"

namespace medley {

// Copies tensors to the host and back. One thread at a time calls each function of a copier.
struct HostCopier {
  // Called when the tensors are computed or enqueued on the GPU. Another thread calls the result,
  // which returns host tensors. Only that call blocks.
  std::function<std::function<std::vector<at::Tensor>()>(std::vector<at::Tensor>)> to_host;
  // Called by the thread that computes with the tensor.
  std::function<at::Tensor(const at::Tensor&)> from_host;
};

// Returns a copier that overlaps with computing, in a stream of its own.
HostCopier make_host_copier(const c10::Device& device);

// Returns a transport over `inner`, which is for host tensors.
std::unique_ptr<Transport> make_host_transport(std::unique_ptr<Transport> inner, HostCopier copier);

}  // namespace medley
