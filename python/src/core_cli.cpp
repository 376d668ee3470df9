// The commands of the core, for the Python entry point.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <iostream>
#include <sstream>

#include "errors.h"
#include "medley/cli/cli.h"
#include "medley/command/additions.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Writes to Python's own streams, so that redirecting those captures everything.
void write(const char* stream, const std::string& text) {
  if (text.empty()) return;
  nb::object target = nb::module_::import_("sys").attr(stream);
  target.attr("write")(medley::to_python(text));
  target.attr("flush")();
}

int run(const std::vector<std::string>& arguments, const std::string& catalogue) {
  medley::LocalFiles files;
  std::ostringstream out, err;
  int code = 0;
  {
    nb::gil_scoped_release released;
    std::ostream* terminal = isatty(STDERR_FILENO) ? &std::cerr : nullptr;
    code = medley::run_cli(arguments,
                           {out, err, files, catalogue, terminal, &medley::all_additions()});
  }
  write("stdout", out.str());
  write("stderr", err.str());
  return code;
}

}  // namespace

void init_cli(nb::module_& m) {
  m.def("run_cli",
        &run,
        "arguments"_a,
        "catalogue"_a,
        "Runs a command of the core, its name first; returns the exit code.");
  m.def("cli_verbs",
        &medley::cli_verbs,
        "Returns name, group and help of the commands that run_cli() knows.");
}
