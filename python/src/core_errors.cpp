#include <nanobind/nanobind.h>

#include "medley/base/error.h"

namespace nb = nanobind;

namespace {

PyObject* python_exception(medley::Blame blame) {
  switch (blame) {
    case medley::Blame::kCaller:
      return PyExc_ValueError;
    case medley::Blame::kEnvironment:
      return PyExc_OSError;
    case medley::Blame::kUs:
      return PyExc_RuntimeError;
  }
  return PyExc_RuntimeError;
}

void translate(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const medley::Error& error) {
    PyErr_SetString(python_exception(error.blame()), error.what());
  }
}

}  // namespace

void init_errors(nb::module_&) { nb::register_exception_translator(translate); }
