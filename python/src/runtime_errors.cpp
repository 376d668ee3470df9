#include <nanobind/nanobind.h>

#include "medley/base/error.h"

namespace nb = nanobind;

namespace {

void translate(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const medley::Error& error) {
    PyObject* type = error.blame() == medley::Blame::kCaller        ? PyExc_ValueError
                     : error.blame() == medley::Blame::kEnvironment ? PyExc_OSError
                                                                    : PyExc_RuntimeError;
    PyErr_SetString(type, error.what());
  }
}

}  // namespace

void init_runtime_errors(nb::module_&) { nb::register_exception_translator(translate); }
