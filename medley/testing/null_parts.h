#pragma once

// Devices for tests: executors that compute no values, and threads that exchange among themselves.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "medley/base/at.h"
#include "medley/runtime/in_process_transport.h"
#include "medley/runtime/null_executor.h"
#include "medley/worker/devices.h"

namespace medley {

inline std::shared_ptr<const Program> share(const Program& program) {
  return std::make_shared<const Program>(program);
}

// Returns one executor for all devices, or one for each.
inline DeviceParts null_parts(std::vector<std::shared_ptr<Executor>> executors = {
                                  std::make_shared<NullExecutor>()}) {
  DeviceParts parts;
  parts.make_executor = [executors](int i) {
    return executors.at(executors.size() == 1 ? 0 : at(i));
  };
  return parts;
}

using Around = std::function<std::shared_ptr<Transport>(std::shared_ptr<Transport>)>;

// Returns the same parts with a wrapper around the transport.
inline DeviceParts null_parts(const Around& around, std::chrono::milliseconds timeout) {
  DeviceParts parts = null_parts();
  parts.make_transport = [around, timeout](Executor& executor, Clock& clock) {
    return around(std::make_shared<InProcessTransport>(executor, clock, timeout));
  };
  return parts;
}

// Returns a cluster of one pool with names only.
inline Cluster nameless_cluster(const std::vector<std::string>& names) {
  Cluster cluster;
  cluster.pools = {{"a", 1, static_cast<int>(names.size()), {}, false, 0}};
  cluster.devices = list_devices(cluster.pools);
  for (size_t i = 0; i < names.size(); ++i) cluster.devices[i].name = names[i];
  return cluster;
}

}  // namespace medley
