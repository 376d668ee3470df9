#pragma once

// Errors and texts of the core in Python. Knows nothing of who raises them.

#include <nanobind/nanobind.h>

#include <exception>
#include <string_view>

#include "medley/base/error.h"

namespace medley {

// Shows invalid UTF-8 (an excerpt of a binary file) as the replacement character.
inline nanobind::object to_python(std::string_view text) {
  return nanobind::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

// Raises ValueError, OSError or RuntimeError, by blame, for nb::register_exception_translator().
inline void translate(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    PyObject* type = error.blame() == Blame::kCaller        ? PyExc_ValueError
                     : error.blame() == Blame::kEnvironment ? PyExc_OSError
                                                            : PyExc_RuntimeError;
    PyErr_SetObject(type, to_python(error.what()).ptr());
  }
}

}  // namespace medley
