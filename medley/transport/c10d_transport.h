#pragma once

// The transport over torch.distributed process groups, which Python creates and this finds by name.
// For Gloo and NCCL. Knows no program.
//
// - all-reduce of several tensors: one flat bucket.
// - all-gather of equal chunks: the collective of that name; else each sends its chunk to all.
// - reduce-scatter: an all-to-all, and a local sum in the order of the devices: equal bits on any
//   backend.
// - all-to-all: over Gloo messages, receives posted first; else the collective of that name.
// - transfers: messages in the largest group, which has all devices.
// - gradient syncs: two rounds of messages there, sums in the order of the members
// (c10d_gradient_sync.h).
//
// An all-reduce sums in the type of the tensors and in the order of the backend.

#include <c10/core/Device.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "medley/runtime/transport.h"

namespace medley {

// Names for messages.
struct NetworkNames {
  std::string interface;                     // "eth0"
  std::map<int, std::string> devices;        // cluster devices
  std::map<std::string, std::string> peers;  // the device at each address "[10.0.0.2]:45209"
};

// `groups`: the c10d name of the process group of every sorted set of devices, whose ranks are in
// this order. `timeout`: per wait. `device`: the destination of values from other stages.
// `connections`: the groups' sockets, which abort() shuts down, so that Gloo's own threads end on
// both sides. They are closed with the transport.
std::unique_ptr<Transport> make_c10d_transport(std::map<std::vector<int>, std::string> groups,
                                               std::chrono::milliseconds timeout,
                                               const c10::Device& device = c10::kCPU,
                                               const NetworkNames& names = {},
                                               std::vector<int> connections = {});

}  // namespace medley
