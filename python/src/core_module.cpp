// medley._core: everything that needs no PyTorch. One init function per file core_<area>.cpp.

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void init_errors(nb::module_& m);
void init_graph(nb::module_& m);
void init_ops(nb::module_& m);
void init_optimizer(nb::module_& m);
void init_program(nb::module_& m);
void init_checkpoint(nb::module_& m);
void init_stages(nb::module_& m);
void init_cluster(nb::module_& m);
void init_planning(nb::module_& m);
void init_emulation(nb::module_& m);
void init_measure(nb::module_& m);
void init_simulate(nb::module_& m);
void init_cli(nb::module_& m);
void init_elastic(nb::module_& m);

NB_MODULE(_core, m) {
  m.doc() = "The core of Medley: graphs, plans, planner, simulator. Needs no PyTorch.";
  init_errors(m);
  init_graph(m);
  init_ops(m);
  init_optimizer(m);
  init_program(m);
  init_checkpoint(m);
  init_stages(m);
  init_cluster(m);
  init_planning(m);
  init_emulation(m);
  init_measure(m);
  init_simulate(m);
  init_cli(m);
  init_elastic(m);
}
