// The ledger of an emulated cluster that processes share, created by their parent.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>

#include "medley/cluster/cluster.h"
#include "medley/emulation/ledger.h"
#include "medley/network/topology.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

class EmulatedLedger {
 public:
  EmulatedLedger(const medley::Cluster& cluster, const std::string& path)
      : topology_(cluster), ledger_(medley::Ledger::create(topology_, path)) {}

  std::string describe() const { return ledger_ ? ledger_->describe() : "closed"; }
  void close() { ledger_.reset(); }

 private:
  medley::Topology topology_;
  std::unique_ptr<medley::Ledger> ledger_;
};

}  // namespace

void init_emulation(nb::module_& m) {
  nb::class_<EmulatedLedger>(m, "EmulatedLedger", "The virtual clock of an emulated cluster.")
      .def(nb::init<const medley::Cluster&, const std::string&>(), "cluster"_a, "path"_a)
      .def("describe", &EmulatedLedger::describe, "Returns what every device is doing, in words.")
      .def("close", &EmulatedLedger::close, "Removes the file.");
}
