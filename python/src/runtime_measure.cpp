// Measures ops on a real device, and the drift of a run from its profile: for
// medley.profiling.profile and medley.trainer.

#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "medley/executor/aten_executor.h"
#include "medley/kernels/arguments.h"
#include "medley/kernels/tensor_buffer.h"
#include "medley/measure/drift.h"
#include "medley/measure/session.h"
#include "medley/profile/profile.h"
#include "medley/run/run.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;

// The number of launches before a wait for the GPU.
constexpr int kLaunches = 20;

class RealDevice {
 public:
  explicit RealDevice(const std::string& name)
      : device_(name), executor_(medley::make_aten_executor(device_)) {}

  int64_t run(medley::MeasuringSession& session,
              const std::string& kind,
              double seconds,
              int64_t first,
              int64_t stride,
              bool quick,
              double window) {
    medley::OpTimer how = timer();
    how.window = to_nanoseconds(medley::Seconds{window});
    if (quick) {
      how.warm_ups = 0;
      how.least = how.most = 1;
    }
    return session.run(how, kind, to_nanoseconds(medley::Seconds{seconds}), first, stride);
  }

 private:
  medley::OpTimer timer() {
    medley::OpTimer timer{.executor = *executor_,
                          .clock = clock_,
                          .make_operand = [this](const medley::TensorType& type, int64_t bound) {
                            return operand(type, bound);
                          }};
    if (!device_.is_cpu()) {
      timer.launches = kLaunches;
      timer.synchronize = [this] {
        const c10::impl::VirtualGuardImpl guard(device_.type());
        guard.synchronizeDevice(device_.has_index() ? device_.index() : c10::DeviceIndex{0});
      };
    }
    return timer;
  }

  // Returns positive values, as moments and variances require.
  medley::Buffer operand(const medley::TensorType& type, int64_t bound) const {
    std::vector<int64_t> shape;
    for (const medley::Size& size : type.shape) shape.push_back(size.coefficient);
    const at::TensorOptions options = at::TensorOptions().device(device_);
    const at::ScalarType dtype = medley::to_scalar_type(type.dtype);
    if (type.dtype == medley::DType::kBool)
      return medley::to_buffer(at::randint(2, shape, options.dtype(at::kLong)).to(dtype));
    if (!medley::is_floating(type.dtype))
      return medley::to_buffer(at::randint(bound, shape, options.dtype(at::kLong)).to(dtype));
    return medley::to_buffer(at::rand(shape, options.dtype(at::kFloat)).to(dtype));
  }

  c10::Device device_;
  std::unique_ptr<medley::Executor> executor_;
  medley::SteadyClock clock_;
};

// (device type, class, ratio, predicted ns, measured ns, segments)
using Row = std::tuple<std::string, std::string, double, int64_t, int64_t, int64_t>;

class Drift {
 public:
  Drift(const medley::Run& run,
        const medley::Cluster& cluster,
        const std::string& profile,
        const std::string& file)
      : meter_(run.worker().program(),
               profile.empty() ? medley::CostModel(cluster)
                               : medley::CostModel(cluster, medley::parse_profile(profile, file))) {
  }

  void add(const medley::Run& run) {
    const std::vector<medley::StepReport>& reports = run.worker().reports();
    for (size_t i = 0; i < reports.size(); ++i) {
      const auto [stage, index] = run.worker().devices().place(static_cast<int>(i));
      meter_.add(stage, index, reports[i]);
    }
  }
  std::vector<Row> rows() const {
    std::vector<Row> rows;
    for (const medley::DriftRow& row : meter_.rows())
      rows.emplace_back(row.kind,
                        std::string(medley::class_name(row.work_class)),
                        row.ratio,
                        row.predicted.value,
                        row.measured.value,
                        row.segments);
    return rows;
  }
  std::string text() const { return to_string(meter_.rows()); }

 private:
  medley::DriftMeter meter_;
};

}  // namespace

void init_runtime_measure(nb::module_& m) {
  nb::class_<RealDevice>(m, "RealDevice", "Measures ops on a device of this machine.")
      .def(nb::init<const std::string&>(), "device"_a)
      .def("run",
           &RealDevice::run,
           nb::sig("def run(self, session: object, kind: str, seconds: float, first: int = 0, "
                   "stride: int = 1, quick: bool = False, window: float = 0.0) -> int"),
           "session"_a,
           "kind"_a,
           "seconds"_a,
           "first"_a = 0,
           "stride"_a = 1,
           "quick"_a = false,
           "window"_a = 0.0,
           Release(),
           "Measures ops of a kind for so long, `quick` ones once each; returns how many of them "
           "are "
           "left.");
  nb::class_<Drift>(m, "Drift", "How far the times of a run are from its profile.")
      .def(
          nb::init<const medley::Run&,
                   const medley::Cluster&,
                   const std::string&,
                   const std::string&>(),
          nb::sig("def __init__(self, run: Run, cluster: object, profile: str, file: str) -> None"),
          "run"_a,
          "cluster"_a,
          "profile"_a,
          "file"_a,
          nb::keep_alive<1, 2>())
      .def("add", &Drift::add, "run"_a, "Takes the last step, which was traced.")
      .def("rows",
           &Drift::rows,
           "(device type, class of ops, measured / predicted, predicted ns, measured ns, "
           "segments).")
      .def("text", &Drift::text, "Returns a table and, if it has drifted, what to do.");
}
