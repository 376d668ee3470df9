// The transport and the counting allocator, for tests and benchmarks.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "medley/base/error.h"
#include "medley/kernels/tensor_buffer.h"
#include "medley/run/counting_allocator.h"
#include "medley/runtime/pulse.h"
#include "medley/transport/c10d_store.h"
#include "medley/transport/c10d_transport.h"
#include "medley/transport/group_name.h"
#include "medley/transport/peer_error.h"
#include "runtime_tensor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;

medley::CommunicationKind parse_kind(const std::string& name) {
  const auto kind = medley::find_communication_kind(name);
  if (kind && medley::traits_of(*kind).own_group) return *kind;
  throw medley::Error(medley::Blame::kCaller, "no such communication: " + name);
}

std::unique_ptr<medley::Pending> post(medley::Transport& transport,
                                      const std::string& kind,
                                      std::vector<int> devices,
                                      int me,
                                      const std::vector<at::Tensor>& inputs,
                                      std::vector<int64_t> send,
                                      std::vector<int64_t> receive,
                                      bool maximum) {
  medley::Exchange exchange;
  exchange.kind = parse_kind(kind);
  exchange.reduce = maximum ? medley::Reduce::kMax : medley::Reduce::kSum;
  exchange.group = std::move(devices);
  exchange.me = me;
  exchange.send = std::move(send);
  exchange.receive = std::move(receive);
  exchange.name = kind;
  for (const at::Tensor& tensor : inputs) exchange.inputs.push_back(medley::to_buffer(tensor));
  return transport.post(std::move(exchange));
}

std::vector<at::Tensor> wait(medley::Pending& pending) {
  std::vector<at::Tensor> outputs;
  for (const medley::Buffer& buffer : pending.wait()) outputs.push_back(medley::to_tensor(buffer));
  return outputs;
}

void init_transport(nb::module_& m) {
  nb::class_<medley::Pending>(m, "Pending").def("wait", &wait, Release());
  nb::class_<medley::Transport>(m, "Transport")
      .def("post",
           &post,
           "kind"_a,
           "devices"_a,
           "me"_a,
           "inputs"_a,
           "send"_a = std::vector<int64_t>(),
           "receive"_a = std::vector<int64_t>(),
           "maximum"_a = false,
           Release())
      .def("abort", &medley::Transport::abort, "cause"_a, Release());
  m.def(
      "c10d_transport",
      [](std::map<std::vector<int>, std::string> groups, int64_t timeout_ms) {
        return medley::make_c10d_transport(std::move(groups),
                                           std::chrono::milliseconds(timeout_ms));
      },
      "groups"_a,
      "timeout_ms"_a);
  m.def("group_name", &medley::group_name, "devices"_a, "generation"_a);
}

void init_store(nb::module_& m) {
  nb::class_<medley::Store>(m, "Store")
      .def("set", &medley::Store::set, "key"_a, "value"_a, Release())
      .def("set_first", &medley::Store::set_first, "key"_a, "value"_a, Release())
      .def("get", &medley::Store::get, "key"_a, Release())
      .def(
          "wait",
          [](medley::Store& store, const std::string& key, int64_t timeout_ms) {
            return store.wait(key, std::chrono::milliseconds(timeout_ms));
          },
          "key"_a,
          "timeout_ms"_a,
          Release());
  nb::class_<medley::Pulse>(
      m, "Pulse", "Tells the store that this process lives, until it is no more referred to.")
      .def(
          "__init__",
          [](medley::Pulse* self,
             const std::string& host,
             int port,
             const std::string& prefix,
             const std::string& key,
             int64_t period_ms) {
            const std::chrono::milliseconds period(period_ms);
            new (self) medley::Pulse(
                medley::make_c10d_store(host, port, false, prefix, std::chrono::minutes(1)),
                key,
                period);
          },
          "host"_a,
          "port"_a,
          "prefix"_a,
          "key"_a,
          "period_ms"_a,
          Release());
  m.def(
      "peer_error",
      &medley::peer_error,
      "text"_a,
      "names"_a = std::map<std::string, std::string>(),
      "Returns what Gloo says of a connection, in a sentence for people. `names`: of what listens "
      "at an address.");
  m.def("print_errors_of_c10d_only", &medley::print_errors_of_c10d_only);
  m.def(
      "c10d_store",
      [](const std::string& host, int port, bool serve, const std::string& prefix, int64_t ms) {
        return medley::make_c10d_store(host, port, serve, prefix, std::chrono::milliseconds(ms));
      },
      "host"_a,
      "port"_a,
      "serve"_a,
      "prefix"_a = "",
      "timeout_ms"_a = 60000,
      Release());
}

}  // namespace

void init_runtime_transport(nb::module_& m) {
  init_transport(m);
  init_store(m);
  m.def("count_allocations", &medley::count_allocations);
  m.def("reset_peak", &medley::reset_peak);
  m.def("allocated_bytes", [] {
    const medley::AllocatedBytes bytes = medley::allocated_bytes();
    return std::pair(bytes.live, bytes.peak);
  });
}
