// medley._runtime: everything that needs PyTorch. One init function per file runtime_<area>.cpp.
// Import torch first.

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void init_runtime_errors(nb::module_& m);
void init_runtime_graph(nb::module_& m);
void init_runtime_measure(nb::module_& m);
void init_runtime_trainer(nb::module_& m);
void init_runtime_state(nb::module_& m);
void init_runtime_reshard(nb::module_& m);
void init_runtime_transport(nb::module_& m);

NB_MODULE(_runtime, m) {
  m.doc() = "What runs programs: kernels, the executor, the transport.";
  init_runtime_errors(m);
  init_runtime_graph(m);
  init_runtime_measure(m);
  init_runtime_trainer(m);
  init_runtime_state(m);
  init_runtime_reshard(m);
  init_runtime_transport(m);
}
