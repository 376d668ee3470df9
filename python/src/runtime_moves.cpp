// medley._runtime.KeptState: the state of a run on its way to the next one, for medley.run.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "medley/run/state_moves.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using medley::KeptState;
using medley::MovePeers;

MovePeers make_peers(const std::string& group,
                     const std::vector<int>& members,
                     int device,
                     int64_t timeout_ms) {
  return {group, members, device, std::chrono::milliseconds(timeout_ms)};
}

std::map<std::string, int64_t> by_name(const medley::MovedBytes& moved) {
  return {{"kept", moved.kept},
          {"received", moved.received},
          {"sent", moved.sent},
          {"homes", moved.homes}};
}

std::map<std::string, int64_t> move(const medley::Moves& moves,
                                    const KeptState& before,
                                    medley::Run* after,
                                    const MovePeers& peers) {
  const nb::gil_scoped_release release;
  return by_name(move_state(moves, before, after, peers));
}

std::map<std::string, int64_t> share(const medley::Moves& moves,
                                     medley::Run* before,
                                     medley::Run* after,
                                     const MovePeers* peers) {
  const nb::gil_scoped_release release;
  return by_name(share_state(moves, before, after, peers));
}

}  // namespace

void init_runtime_moves(nb::module_& m) {
  nb::class_<MovePeers>(m, "MovePeers", "The processes that give each other state.")
      .def(
          "__init__",
          [](MovePeers* self,
             const std::string& group,
             const std::vector<int>& members,
             int device,
             int64_t timeout_ms) {
            new (self) MovePeers(make_peers(group, members, device, timeout_ms));
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
      .def("fill_homes",
           &medley::fill_homes,
           nb::sig("def fill_homes(self, homes: object, peers: MovePeers) -> int"),
           "homes"_a,
           "peers"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Gives others what is to live with them a second time, and takes what is to live here; "
           "returns the bytes sent.")
      .def(
          "with_homes_of",
          [](const KeptState& state, const KeptState& other) {
            return KeptState{state.shards, other.homes};
          },
          "other"_a,
          "Returns its own part of this, and what another one keeps for others.");
  m.def("move_state",
        &move,
        nb::sig("def move_state(moves: object, before: KeptState, after: Run | None, "
                "peers: MovePeers) -> dict[str, int]"),
        "moves"_a,
        "before"_a,
        "after"_a.none(),
        "peers"_a,
        "Gives the run after what all have, together with all of them. Returns the bytes kept, "
        "received and sent, and how many of them came from second homes.");
  m.def("share_state",
        &share,
        nb::sig("def share_state(moves: object, before: Run | None, after: Run | None, "
                "peers: MovePeers | None) -> dict[str, int]"),
        "moves"_a,
        "before"_a.none(),
        "after"_a.none(),
        "peers"_a.none(),
        "Gives a run values of another one, together with all processes that have devices of "
        "either; `peers`: None where all devices are of this process. Returns the bytes.");
}
