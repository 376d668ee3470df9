# Headers that many files include, compiled once for all files of a target. Of no use with ccache, which then
# knows fewer files again: only where there is none, unless said otherwise.
if(MEDLEY_CCACHE)
  set(default OFF)
else()
  set(default ON)
endif()
option(MEDLEY_PRECOMPILE "Precompile the headers that most files include" ${default})

set(medley_std_headers <algorithm> <array> <cmath> <cstdint> <functional> <map> <memory> <numeric>
    <optional> <set> <span> <string> <string_view> <tuple> <utility> <variant> <vector> <fmt/format.h>)
set(medley_torch_headers <ATen/core/Tensor.h> <ATen/core/dispatch/Dispatcher.h> <ATen/core/grad_mode.h>
    <ATen/ops/empty.h>)

# Targets of one kind are compiled with the same flags, and share what is precompiled.
# core: a module without PyTorch; test: a test program without; torch, bindings, torch_bindings: one target each.
function(medley_precompile target kind)
  if(NOT MEDLEY_PRECOMPILE)
    return()
  endif()
  set(core_headers ${medley_std_headers} <nlohmann/json.hpp>)
  set(test_headers ${core_headers} <gmock/gmock.h>)
  set(torch_headers ${medley_std_headers} ${medley_torch_headers})
  set(bindings_headers ${medley_std_headers} <nanobind/nanobind.h> <nanobind/stl/string.h>
      <nanobind/stl/vector.h>)
  set(torch_bindings_headers ${bindings_headers} ${medley_torch_headers}
      <torch/csrc/autograd/python_variable.h>)
  if(NOT kind STREQUAL core AND NOT kind STREQUAL test)
    target_precompile_headers(${target} PRIVATE ${${kind}_headers})
    return()
  endif()
  get_property(first GLOBAL PROPERTY MEDLEY_PRECOMPILED_${kind})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${${kind}_headers})
    set_property(GLOBAL PROPERTY MEDLEY_PRECOMPILED_${kind} ${target})
  endif()
endfunction()
