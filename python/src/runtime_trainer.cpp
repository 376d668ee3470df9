// medley._runtime.Run: a running plan, for medley.trainer.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <chrono>

#include "medley/base/error.h"
#include "medley/elastic/decision.h"
#include "medley/run/run.h"
#include "python/src/dict_reader.h"
#include "runtime_tensor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using medley::Run;

medley::Emulation read_emulation(const nb::dict& entries) {
  medley::Emulation emulation;
  medley::DictReader read(entries);
  read("ledger", emulation.ledger);
  read("truth_seed", emulation.truth_seed);
  read("truth_spread", emulation.truth_spread);
  read("profile", emulation.profile);
  read("pace", emulation.pace);
  read("delay_seed", emulation.delay_seed);
  read.finish("emulation");
  return emulation;
}

void read_membership(const nb::dict& entries, medley::RunInput& input) {
  medley::StoreAddress store;
  medley::DictReader read(entries);
  read("host", store.host);
  read("port", store.port);
  read("prefix", store.prefix);
  read("generation", input.worker.membership.generation);
  int64_t heartbeat_timeout = input.worker.membership.heartbeat_timeout.count();
  read("heartbeat_timeout_ms", heartbeat_timeout);
  int64_t poll = input.worker.membership.poll.count();
  read("poll_ms", poll);
  int64_t meet = input.worker.membership.timeout.count();
  read("meet_ms", meet);
  input.worker.membership.timeout = std::chrono::milliseconds(meet);
  bool ends_process = true;
  read("ends_process", ends_process);
  read("interface", store.interface);
  read.finish("membership");
  input.worker.membership.heartbeat_timeout = std::chrono::milliseconds(heartbeat_timeout);
  input.worker.membership.poll = std::chrono::milliseconds(poll);
  if (!ends_process) input.worker.membership.exit = [](const std::string&, medley::Blame) {};
  input.worker.membership.link = fmt::format("link to {}:{}", store.host, store.port);
  if (!store.interface.empty()) input.worker.membership.link += " through " + store.interface;
  input.store = store;
}

void read_options(const nb::dict& entries, medley::RunInput& input) {
  medley::DictReader read(entries);
  medley::DeviceOptions& devices = input.worker.devices;
  int64_t timeout = input.timeout.count();
  read("seed", input.seed);
  read("keep_gradients", devices.keep_gradients);
  read("keep_undo", devices.keep_undo);
  read("own", devices.own);
  read("torch_devices", input.torch_devices);
  nb::object make_groups = nb::none();
  read("make_groups", make_groups);
  read("through_host", input.through_host);
  read("versions", input.worker.versions);
  read("trace", devices.trace);
  read("timeout_ms", timeout);
  read("interface", input.interface);
  nb::object on_step = nb::none();
  read("on_step", on_step);
  if (!on_step.is_none())
    devices.on_step = [hook = on_step.ptr()](const medley::Place& place) {
      const nb::gil_scoped_acquire acquire;  // the test keeps it alive
      const nb::handle callable(hook);
      callable(place.call, place.exchange);
    };
  nb::dict emulation, membership;
  read("emulation", emulation);
  read("membership", membership);
  read.finish("options");
  if (!make_groups.is_none())
    input.make_groups = [make = make_groups.ptr()] {
      const nb::gil_scoped_acquire acquire;  // `options` keeps it alive
      using Made = std::tuple<std::map<std::vector<int>, std::string>,
                              std::map<std::string, std::string>,
                              std::vector<int>>;
      const auto [names, peers, connections] = nb::cast<Made>(nb::handle(make)());
      return medley::ProcessGroups{names, peers, connections};
    };
  if (emulation.size() > 0) devices.emulation = read_emulation(emulation);
  input.timeout = devices.timeout = input.worker.membership.timeout =
      std::chrono::milliseconds(timeout);
  if (membership.size() > 0) read_membership(membership, input);
}

void make_run(Run* self,
              const medley::Program& program,
              const medley::Cluster& cluster,
              const nb::dict& options) {
  medley::RunInput input;
  input.worker.program = std::make_shared<const medley::Program>(program);
  input.worker.cluster = cluster;
  read_options(options, input);
  // A Gloo thread with the last reference to a tensor that Python has seen takes the lock to
  // release it. A process group waits for its threads at its end.
  input.at_end = [] { return std::make_shared<nb::gil_scoped_release>(); };
  const nb::gil_scoped_release release;
  new (self) Run(input);
}

// The time that a step of this process alone may still take after Ctrl-C. Aborting one in its
// update would leave parameters of two steps.
constexpr std::chrono::seconds kToFinish{3};

// Runs a step and polls for Ctrl-C, which Python only notes meanwhile. A second one ends the step.
medley::StepResult run_step(Run& run,
                            const std::map<std::string, at::Tensor>& batch,
                            const std::vector<std::vector<double>>& scalars,
                            int64_t step,
                            int size) {
  std::exception_ptr signal;
  std::chrono::steady_clock::time_point last;
  const auto poll = [&] {
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) {
      last = std::chrono::steady_clock::now() + kToFinish;
      if (signal || !run.worker().is_alone()) last = {};
      signal = std::make_exception_ptr(nb::python_error());
    }
    return signal && std::chrono::steady_clock::now() > last;
  };
  const auto finish = [&]() -> medley::StepResult {
    const nb::gil_scoped_release release;
    try {
      return run.step(batch, scalars, step, size, poll);
    } catch (const std::exception&) {
      if (!signal) throw;
    }
    return {};
  };
  medley::StepResult result = finish();
  if (signal) std::rethrow_exception(signal);
  return result;
}

std::vector<nb::dict> memory(const Run& run) {
  std::vector<nb::dict> rows;
  for (const medley::MemoryUse& use : run.worker().memory()) {
    nb::dict row;
    row["persistent"] = use.persistent;
    row["peak"] = use.peak;
    row["peak_at"] = use.peak_at;
    rows.push_back(row);
  }
  return rows;
}

std::tuple<std::string, std::optional<double>, bool, bool> left(Run& run) {
  const Run::Left left = run.left();
  return {to_string(left.reached), left.committed, left.commits, left.spreads};
}

}  // namespace

void init_runtime_trainer(nb::module_& m) {
  nb::class_<medley::StepResult>(
      m, "StepResult", "What a step gives: the loss, the norm of the gradient, and times.")
      .def_ro("loss", &medley::StepResult::loss)
      .def_ro("gradient_norm", &medley::StepResult::gradient_norm)
      .def_ro("metrics", &medley::StepResult::metrics, "By name, of the whole batch.")
      .def_ro("devices", &medley::StepResult::devices, "Names of the devices of this process.")
      .def_ro(
          "nanoseconds", &medley::StepResult::nanoseconds, "That the step took on each of them.")
      .def_ro("waiting",
              &medley::StepResult::waiting,
              "Nanoseconds of it in which each waited for others.");

  nb::class_<Run>(m, "Run", "A plan at work on the devices of this process.")
      .def("__init__",
           &make_run,
           nb::sig("def __init__(self, program: object, cluster: object, "
                   "options: dict[str, object]) -> None"),
           "program"_a,
           "cluster"_a,
           "options"_a,
           "The options: seed, keep_gradients, trace, own (indices of devices; all without), "
           "torch_devices, timeout_ms, interface, make_groups, through_host, membership, versions, "
           "emulation.")
      .def("load",
           &Run::load,
           "kind"_a,
           "name"_a,
           "whole"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Gives every device of this process its shard of a parameter, buffer or state.")
      .def("clear_state",
           &Run::clear_state,
           nb::call_guard<nb::gil_scoped_release>(),
           "Lets the optimizer start anew; to be called before the parameters are loaded.")
      .def("shard",
           &Run::shard,
           "kind"_a,
           "name"_a,
           "index"_a = 0,
           "Returns the shard of a device of this process.")
      .def("holders",
           &Run::holders,
           "kind"_a,
           "name"_a,
           "Returns the devices of the plan that have a value, by their places in `device_names`.")
      .def("shard_shape",
           &Run::shard_shape,
           "kind"_a,
           "name"_a,
           "device"_a,
           "Returns the shape of any device's shard.")
      .def("is_cut",
           &Run::is_cut,
           "kind"_a,
           "name"_a,
           "Returns whether devices hold different shards.")
      .def("disagreements",
           &Run::disagreements,
           nb::call_guard<nb::gil_scoped_release>(),
           "Returns the names of values of which two devices have different bits.")
      .def("assemble",
           &Run::assemble,
           "kind"_a,
           "name"_a,
           "shards"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Returns the whole tensor from the shards of all devices; any one if it is not cut.")
      .def("step",
           &run_step,
           "batch"_a,
           "scalars"_a,
           "step"_a,
           "size"_a = 0,
           "Trains on a global batch, or this device's rows of it, with the scalars of each rule: "
           "learning rate, 1 or the limit of the norm, hyperparameters. `size`: of add_size().")
      .def_prop_ro(
          "steps",
          [](const Run& run) { return run.worker().steps(); },
          "Those that have succeeded.")
      .def("add_size",
           &Run::add_size,
           nb::sig("def add_size(self, program: object, label: str) -> int"),
           "program"_a,
           "label"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Takes a program for batches of another size; returns its number. `label`: of 3 rows.")
      .def("share_values",
           &Run::share_values,
           "other"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Takes the parameters and buffers of another run on the same devices, not copied.")
      .def("drop_values",
           &Run::drop_values,
           nb::call_guard<nb::gil_scoped_release>(),
           "Lets go of the parameters.")
      .def("drop",
           &Run::drop,
           "kind"_a,
           "name"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Lets go of one value, which is given anew before the next step.")
      .def("left",
           &left,
           "Returns how far the last step has come, as StepLeft says it: (reached, committed, "
           "commits, spreads).")
      .def("finish_step",
           &Run::finish_step,
           "committed"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Ends a step that has failed at its commit or behind it, by this device alone.")
      .def("undo",
           &Run::undo,
           "steps"_a,
           nb::call_guard<nb::gil_scoped_release>(),
           "Puts back what the last steps have changed.")
      .def("memory",
           &memory,
           nb::sig("def memory(self) -> list[dict[str, object]]"),
           "Returns persistent and peak bytes of every device, and where the peak is.")
      .def(
          "peak_bytes",
          [](const Run& run) { return run.worker().devices().peak_bytes(); },
          "Returns the most bytes that each emulated device of this process has had so far.")
      .def(
          "trace_json",
          [](const Run& run) { return run.worker().trace_json(); },
          "Returns what the devices of this process did in the last step, for Perfetto.")
      .def(
          "fail",
          [](Run& run, const std::string& cause, bool in_exchange) {
            return run.worker().fail(cause, in_exchange);
          },
          "cause"_a,
          "in_exchange"_a = false,
          nb::call_guard<nb::gil_scoped_release>(),
          "Tells the other processes that this one has failed; returns the first cause of the run. "
          "After an exchange a process that has finished is the cause.")
      .def(
          "abort",
          [](Run& run, const std::string& cause) { run.worker().devices().abort(cause); },
          "cause"_a,
          nb::call_guard<nb::gil_scoped_release>(),
          "Ends what the devices of this process wait for, for good; any thread may call it.")
      .def(
          "begin",
          [](Run& run, const std::string& call) { run.worker().begin(call); },
          "joint_call"_a,
          "Before what all processes have to call together; within another one it is a part of it.")
      .def(
          "end", [](Run& run) { run.worker().end(); }, "After it.")
      .def(
          "finish",
          [](Run& run) { run.worker().finish(); },
          nb::call_guard<nb::gil_scoped_release>(),
          "Tells the other processes that this one has nothing more to do.")
      .def_prop_rw("seed", &Run::seed, &Run::set_seed, "Of dropout, from the next step on.")
      .def_prop_rw(
          "is_trial",
          [](const Run& run) { return run.worker().is_trial(); },
          [](Run& run, bool is_trial) { run.worker().set_trial(is_trial); },
          "Whether the caller tells the other processes of a failed step.")
      .def_prop_ro("values", &Run::values, "(kind, name) of everything that can be read.")
      .def_prop_ro(
          "device_names",
          [](const Run& run) { return run.worker().device_names(); },
          "The devices of the plan, in its order.");
}
