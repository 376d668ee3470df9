#pragma once

// The transport over process groups of torch.distributed, which are made in Python and found by
// name. Gloo and NCCL alike. Knows no program.
//
// - all-reduce of several tensors: one flat bucket.
// - all-gather of equal chunks: the collective of that name; else everybody sends its chunk to all.
// - reduce-scatter: an all-to-all, and a sum in the order of the devices here: the same bits on any
//   backend.
// - all-to-all: over Gloo messages, receives posted first; else the collective of that name.
// - transfers: messages in the largest of the groups, which has all devices.
// - relays: two rounds of messages there, sums in the order of the members (c10d_relay.h).
//
// Sums of an all-reduce are in the type of the tensors and in the order of the backend.

#include <c10/core/Device.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "medley/runtime/transport.h"

namespace medley {

// For messages.
struct NetworkNames {
  std::string interface;                     // "eth0"
  std::map<int, std::string> devices;        // of the cluster
  std::map<std::string, std::string> peers;  // which device listens at "[10.0.0.2]:45209"
};

// `groups`: the c10d name of the process group of every set of devices, sorted; its ranks are in
// this order. `timeout`: of every wait. `device`: where what is received from other stages goes.
// `connections`: sockets of these groups, which abort() shuts down, so that Gloo's own threads end
// what they are in, here and at the other ends; they are closed with the transport.
std::unique_ptr<Transport> make_c10d_transport(std::map<std::vector<int>, std::string> groups,
                                               std::chrono::milliseconds timeout,
                                               const c10::Device& device = c10::kCPU,
                                               const NetworkNames& names = {},
                                               std::vector<int> connections = {});

}  // namespace medley
