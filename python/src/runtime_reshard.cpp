// medley._runtime.KeptState: the state of a run on its way to the next one, for medley.run.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "medley/run/reshard_state.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using medley::KeptState;
using medley::ReshardPeers;

ReshardPeers make_peers(const std::string& group,
                        const std::vector<int>& members,
                        int device,
                        int64_t timeout_ms) {
  return {group, members, device, std::chrono::milliseconds(timeout_ms)};
}

std::map<std::string, int64_t> by_name(const medley::ReshardedBytes& moved) {
  return {{"kept", moved.kept},
          {"received", moved.received},
          {"sent", moved.sent},
          {"replicas", moved.replicas}};
}

std::map<std::string, int64_t> move(const medley::ReshardPlan& moves,
                                    const KeptState& before,
                                    medley::Run* after,
                                    const ReshardPeers& peers) {
  const nb::gil_scoped_release release;
  return by_name(reshard_state(moves, before, after, peers));
}

std::map<std::string, int64_t> share(const medley::ReshardPlan& moves,
                                     medley::Run* before,
                                     medley::Run* after,
                                     const ReshardPeers* peers) {
  const nb::gil_scoped_release release;
  return by_name(share_state(moves, before, after, peers));
}

}  // namespace

void init_runtime_reshard(nb::module_& m) {
  nb::class_<ReshardPeers>(m, "ReshardPeers", "The processes that give each other state.")
      .def(
          "__init__",
          [](ReshardPeers* self,
             const std::string& group,
             const std::vector<int>& members,
             int device,
             int64_t timeout_ms) {
            new (self) ReshardPeers(make_peers(group, members, device, timeout_ms));
          },
          "group"_a,
          "members"_a,
          "device"_a,
          "timeout_ms"_a,
          "`members`: devices of the cluster, in the order of their ranks in the process group; "
          "`device`: the one of this process.");
  nb::class_<KeptState>(m, "KeptState", "What this process has of a state.")
      .def(nb::init<>(), "Nothing.")
      .def_static("hold",
                  &medley::hold,
                  "run"_a,
                  nb::call_guard<nb::gil_scoped_release>(),
                  "Of a run, between its steps; later ones do not change it.")
      .def("fill_replicas",
           &medley::fill_replicas,
           nb::sig("def fill_replicas(self, replicas: object, peers: ReshardPeers) -> int"),
           "replicas"_a,
           "peers"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Gives others what is to live with them a second time, and takes what is to live here; "
           "returns the bytes sent.")
      .def(
          "with_replicas_of",
          [](const KeptState& state, const KeptState& other) {
            return KeptState{state.shards, other.replicas};
          },
          "other"_a,
          "Returns its own part of this, and what another one keeps for others.");
  m.def("reshard_state",
        &move,
        nb::sig("def reshard_state(moves: object, before: KeptState, after: Run | None, "
                "peers: ReshardPeers) -> dict[str, int]"),
        "moves"_a,
        "before"_a,
        "after"_a.none(),
        "peers"_a,
        "Gives the run after what all have, together with all of them. Returns the bytes kept, "
        "received and sent, and how many of them came from state replicas.");
  m.def("share_state",
        &share,
        nb::sig("def share_state(moves: object, before: Run | None, after: Run | None, "
                "peers: ReshardPeers | None) -> dict[str, int]"),
        "moves"_a,
        "before"_a.none(),
        "after"_a.none(),
        "peers"_a.none(),
        "Gives a run values of another one, together with all processes that have devices of "
        "either; `peers`: None where all devices are of this process. Returns the bytes.");
}
