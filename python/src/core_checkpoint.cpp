// medley._core: checkpoints as folders and manifests, for medley.checkpoint.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "medley/base/at.h"
#include "medley/base/error.h"
#include "medley/checkpoint/folder.h"
#include "medley/checkpoint/read.h"
#include "medley/checkpoint/write_plan.h"
#include "python/src/dict_reader.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using medley::Manifest;
using medley::Program;
using Cursor = std::tuple<int64_t, int64_t, int64_t>;
using File = std::tuple<int, std::string, int64_t, std::string>;

medley::LocalFiles& disk() {
  static medley::LocalFiles files;  // stateless
  return files;
}

medley::TrainingState read_state(const nb::dict& entries) {
  medley::TrainingState state;
  std::optional<Cursor> data;
  medley::DictReader read(entries);
  read("step", state.step);
  read("global_batch", state.global_batch);
  read("seed", state.seed);
  read("data", data);
  read("optimizer", state.optimizer);
  read("schedule", state.schedule);
  read("graph", state.graph);
  read("plan", state.plan);
  read("cluster", state.cluster);
  read("versions", state.versions);
  read.finish("state");
  if (data) state.data = {std::get<0>(*data), std::get<1>(*data), std::get<2>(*data)};
  return state;
}

// `written`: writer, name, bytes and checksum of the header of each file. The writers of the second
// write plan are numbered after those of the first, and so on.
void make_manifest(Manifest* self,
                   const std::vector<const medley::ProgramWritePlan*>& write_plans,
                   const nb::dict& state,
                   const std::vector<File>& written) {
  Manifest manifest{read_state(state), {}, {}};
  int writers = 0;
  for (const medley::ProgramWritePlan* planned : write_plans) {
    for (medley::StoredValue value : planned->write_plan.values) {
      for (int& file : value.files) file += writers;
      manifest.values.push_back(std::move(value));
    }
    writers += static_cast<int>(planned->write_plan.writers.size());
  }
  manifest.files.resize(medley::at(writers));
  for (const auto& [writer, name, bytes, sha256] : written)
    manifest.files.at(medley::at(writer)) = {name, bytes, sha256};
  for (const medley::StoredFile& file : manifest.files) MEDLEY_CHECK(!file.name.empty());
  new (self) Manifest(std::move(manifest));
}

std::optional<Cursor> data_of(const Manifest& manifest) {
  const auto& data = manifest.state.data;
  if (!data) return {};
  return Cursor(data->epoch, data->batch, data->seed);
}

std::vector<std::tuple<std::string, int64_t, bool>> find(const std::string& folder) {
  std::vector<std::tuple<std::string, int64_t, bool>> rows;
  for (const medley::FoundCheckpoint& each : find_checkpoints(disk(), folder))
    rows.emplace_back(each.path, each.step, each.is_complete);
  return rows;
}

// (kind, name, dtype, shape) of each value.
using ValueRow = std::tuple<std::string, std::string, std::string, std::vector<int64_t>>;
std::vector<ValueRow> values_of(const Manifest& manifest) {
  std::vector<ValueRow> rows;
  for (const medley::StoredValue& value : manifest.values)
    rows.emplace_back(value.kind, value.name, to_string(value.dtype), value.shape);
  return rows;
}

// Returns one whole value, as bytes.
nb::bytes read_value(const Manifest& manifest,
                     const std::string& folder,
                     const std::string& kind,
                     const std::string& name) {
  std::string bytes;
  {
    const nb::gil_scoped_release release;
    for (const medley::StoredValue& value : manifest.values) {
      if (value.kind != kind || value.name != name) continue;
      bytes.resize(medley::at(medley::product_of(value.shape) * bytes_per_element(value.dtype)));
      const medley::Box whole = medley::whole_box(value.shape);
      std::vector<medley::Box> boxes;
      if (volume(whole) > 0) boxes.push_back(whole);
      read_checkpoint(
          disk(),
          folder,
          manifest,
          {{kind, name, value.dtype, value.shape, {value.shape, boxes, {}, {}}, {bytes.data()}}});
    }
  }
  return nb::bytes(bytes.data(), bytes.size());
}

}  // namespace

void init_checkpoint(nb::module_& m) {
  nb::class_<medley::ProgramWritePlan>(
      m, "WritePlan", "Who writes what of the checkpoints of a program: the same for all of them.")
      .def(
          "__init__",
          [](medley::ProgramWritePlan* self, const Program& program) {
            new (self) medley::ProgramWritePlan(medley::plan_writes(program));
          },
          "program"_a)
      .def(
          "__init__",
          [](medley::ProgramWritePlan* self,
             const Program& program,
             const std::vector<std::pair<std::string, std::string>>& among,
             const std::string& prefix) {
            new (self) medley::ProgramWritePlan(
                medley::plan_writes(program, {among.begin(), among.end()}, prefix));
          },
          "program"_a,
          "among"_a,
          "prefix"_a,
          "Of some values, by kind and name; those of the optimizer get the prefix.")
      .def_prop_ro(
          "num_writers",
          [](const medley::ProgramWritePlan& planned) { return planned.write_plan.writers.size(); })
      .def_prop_ro("held_bytes",
                   &medley::held_bytes,
                   "Of each device of all stages, while what it writes is held.");
  nb::class_<Manifest>(m, "Manifest", "What a checkpoint says about itself.")
      .def("__init__",
           &make_manifest,
           nb::sig("def __init__(self, write_plans: list[WritePlan], state: dict[str, object], "
                   "written: list[tuple[int, str, int, str]]) -> None"),
           "write_plans"_a,
           "state"_a,
           "written"_a,
           "Of a checkpoint that the devices of one program, or several, have written.")
      .def(
          "part",
          [](const Manifest& manifest,
             const std::vector<std::pair<std::string, std::string>>& among,
             const std::string& prefix) {
            return part_of(manifest, {among.begin(), among.end()}, prefix);
          },
          "among"_a,
          "prefix"_a,
          "Returns what a program finds in a checkpoint of several: the values that it shares, by "
          "kind and name, and the state of its optimizer, whose names begin with the prefix.")
      .def_static(
          "open",
          [](const std::string& path) { return open_checkpoint(disk(), path); },
          "path"_a,
          nb::call_guard<nb::gil_scoped_release>(),
          "Raises ValueError naming the file if the checkpoint is not complete or not itself.")
      .def(
          "commit",
          [](const Manifest& manifest, const std::string& folder) {
            commit_checkpoint(disk(), folder, manifest);
          },
          "folder"_a,
          nb::call_guard<nb::gil_scoped_release>(),
          "Completes the checkpoint whose files are written.")
      .def(
          "check",
          [](const Manifest& manifest, const std::string& path) {
            return check_checkpoint(disk(), path, manifest);
          },
          "path"_a,
          nb::call_guard<nb::gil_scoped_release>(),
          "Reads and checks every byte; returns how many there are.")
      .def("read", &read_value, "path"_a, "kind"_a, "name"_a, "Returns the bytes of a whole value.")
      .def_prop_ro("values", &values_of, "(kind, name, dtype, shape) of each value.")
      .def_prop_ro("step", [](const Manifest& manifest) { return manifest.state.step; })
      .def_prop_ro("global_batch",
                   [](const Manifest& manifest) { return manifest.state.global_batch; })
      .def_prop_ro("seed", [](const Manifest& manifest) { return manifest.state.seed; })
      .def_prop_ro("data", &data_of, "(epoch, batch, seed) of the rows of the next step.")
      .def_prop_ro("optimizer", [](const Manifest& manifest) { return manifest.state.optimizer; })
      .def_prop_ro("schedule", [](const Manifest& manifest) { return manifest.state.schedule; })
      .def("text", [](const Manifest& manifest) { return print(manifest); });

  m.def("find_checkpoints",
        &find,
        "folder"_a,
        "(path, step, whether it is complete) of each checkpoint in a folder, newest first.");
  m.def("checkpoint_folder",
        &medley::temporary_folder,
        "folder"_a,
        "step"_a,
        "Returns where the files of a checkpoint are written.");
  m.def(
      "begin_checkpoint",
      [](const std::string& folder, int64_t step) { begin_checkpoint(disk(), folder, step); },
      "folder"_a,
      "step"_a,
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "drop_checkpoint",
      [](const std::string& folder, int64_t step) { drop_checkpoint(disk(), folder, step); },
      "folder"_a,
      "step"_a,
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "retire_checkpoints",
      [](const std::string& folder, int64_t keep, int64_t keep_every) {
        retire_checkpoints(disk(), folder, {keep, keep_every});
      },
      "folder"_a,
      "keep"_a,
      "keep_every"_a,
      nb::call_guard<nb::gil_scoped_release>());
}
