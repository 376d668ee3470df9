// medley._runtime.StateWriter: the state of a run in checkpoints.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cmath>
#include <tuple>

#include "medley/run/run_state.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

medley::LocalFiles& disk() {
  static medley::LocalFiles files;  // stateless
  return files;
}

std::vector<std::tuple<int, std::string, int64_t, std::string>> finish(
    medley::StateWriter& writer) {
  std::vector<std::tuple<int, std::string, int64_t, std::string>> rows;
  for (const auto& [place, file] : writer.finish())
    rows.emplace_back(place, file.name, file.bytes, file.header_sha256);
  return rows;
}

}  // namespace

void init_runtime_state(nb::module_& m) {
  nb::class_<medley::StateWriter>(
      m, "StateWriter", "Writes this process's part of a checkpoint beside training.")
      .def(
          "__init__",
          [](medley::StateWriter* self,
             medley::Run& run,
             const medley::ProgramWritePlan& write_plan,
             const std::string& folder,
             double spread,
             const std::string& prefix) {
            const std::chrono::nanoseconds takes(std::llround(spread * 1e9));
            new (self) medley::StateWriter(run, write_plan, disk(), folder, takes, prefix);
          },
          nb::sig("def __init__(self, run: Run, write_plan: object, folder: str, spread: float, "
                  "prefix: str = '') -> None"),
          "run"_a,
          "write_plan"_a,
          "folder"_a,
          "spread"_a,
          "prefix"_a = "",
          "spread: seconds that it may take, or more if it needs more. prefix: of names of files.")
      .def_prop_ro("is_done", &medley::StateWriter::is_done)
      .def_prop_ro("bytes",
                   &medley::StateWriter::bytes,
                   "That copies of what is held take, beyond memory that is kept for them.")
      .def("next",
           &medley::StateWriter::next,
           nb::call_guard<nb::gil_scoped_release>(),
           "From now on this thread writes: does the next piece of what is left; returns whether "
           "nothing is.")
      .def("abandon",
           &medley::StateWriter::abandon,
           nb::call_guard<nb::gil_scoped_release>(),
           "Leaves what is written as it is, and holds nothing any more.")
      .def("finish",
           &finish,
           nb::call_guard<nb::gil_scoped_release>(),
           "Does what is left; returns (writer, name, bytes, SHA-256 of the header) of each file.");

  m.def(
      "match_state",
      [](medley::Run& run,
         const std::string& folder,
         const medley::Manifest& manifest,
         bool parameters_only) { require_match(run, folder, manifest, parameters_only); },
      nb::sig("def match_state(run: Run, folder: str, manifest: object, parameters_only: bool) -> "
              "None"),
      "run"_a,
      "folder"_a,
      "manifest"_a,
      "parameters_only"_a,
      "Raises ValueError naming the first value in which a checkpoint and a run differ.");
  m.def(
      "load_state",
      [](const std::vector<std::tuple<medley::Run*, const medley::Manifest*, std::string>>& runs,
         const std::string& folder,
         const medley::Manifest& manifest,
         bool parameters_only) {
        std::vector<medley::LoadedRun> loaded;
        for (const auto& [run, part, prefix] : runs) loaded.push_back({run, *part, prefix});
        load_state(loaded, disk(), folder, manifest, parameters_only);
      },
      nb::sig("def load_state(runs: list[tuple[Run, object, str]], folder: str, manifest: object, "
              "parameters_only: bool) -> None"),
      "runs"_a,
      "folder"_a,
      "manifest"_a,
      "parameters_only"_a,
      nb::call_guard<nb::gil_scoped_release>(),
      "Gives the devices of this process what they have of a checkpoint: runs, each with what it "
      "finds there, and the prefix of its state.");
}
