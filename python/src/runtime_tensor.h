#pragma once

// at::Tensor as an argument and result of bound functions.

#include <nanobind/nanobind.h>
#include <torch/csrc/autograd/python_variable.h>

namespace nanobind::detail {

template <>
struct type_caster<at::Tensor> {
  NB_TYPE_CASTER(at::Tensor, const_name("torch.Tensor"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    if (source.is_none()) {
      value = at::Tensor();
      return true;
    }
    if (!THPVariable_Check(source.ptr())) return false;
    value = THPVariable_Unpack(source.ptr());
    return true;
  }

  static handle from_cpp(const at::Tensor& tensor, rv_policy, cleanup_list*) noexcept {
    if (!tensor.defined()) return none().release();
    return THPVariable_Wrap(tensor);
  }
};

}  // namespace nanobind::detail
