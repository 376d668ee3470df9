#pragma once

// GPUs over a transport that reaches processors only, Gloo: what is sent is copied to the host
// first, what is received from there. So GPUs of several makers, GPUs beside processors, several
// processes on one GPU and runs that lose processes have a transport.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "medley/runtime/transport.h"

namespace medley {

// How tensors get to the host and back. The functions of a copier are called by one thread at a
// time each.
struct HostCopier {
  // Called where the tensors were computed, or will be once the GPU is that far; what it returns is
  // called by another thread and gives them on the host. Blocks only there.
  std::function<std::function<std::vector<at::Tensor>()>(std::vector<at::Tensor>)> to_host;
  // Called by whoever computes with the tensor.
  std::function<at::Tensor(const at::Tensor&)> from_host;
};

// Copies beside what the GPU computes, in a stream of its own.
HostCopier make_host_copier(const c10::Device& device);

// `inner` is a transport of processors.
std::unique_ptr<Transport> make_host_transport(std::unique_ptr<Transport> inner, HostCopier copier);

}  // namespace medley
