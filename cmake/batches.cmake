# For whoever builds once: headers that most files include are compiled once, and the files of a room in batches, so
# that a build from nothing takes half as long. Where there is ccache neither is done: it knows single files.
if(MEDLEY_CCACHE)
  set(default OFF)
else()
  set(default ON)
endif()
option(MEDLEY_BATCHES "Precompile headers, and compile the files of a room in batches" ${default})

if(MEDLEY_BATCHES AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # A batch lives in a gigabyte: below that nothing is gained by collecting garbage, a twelfth of the time lost.
  add_compile_options("SHELL:--param ggc-min-heapsize=1000000")
endif()

set(medley_std_headers <algorithm> <array> <cmath> <cstdint> <functional> <map> <memory> <numeric>
    <optional> <set> <span> <string> <string_view> <tuple> <utility> <variant> <vector> <fmt/format.h>)
set(medley_torch_headers <ATen/core/Tensor.h> <ATen/core/dispatch/Dispatcher.h> <ATen/core/grad_mode.h>
    <ATen/ops/empty.h>)

# Where names of two files of a room collide, one of them says SKIP_UNITY_BUILD_INCLUSION in the room's CMakeLists.txt.
# Batches are of equal size, at most `most` files each: templates that all of them use are compiled once.
function(medley_batch target most)
  if(MEDLEY_BATCHES)
    get_target_property(sources ${target} SOURCES)
    list(LENGTH sources files)
    math(EXPR batches "(${files} + ${most} - 1) / ${most}")
    math(EXPR size "(${files} + ${batches} - 1) / ${batches}")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      # It takes all files but the first of a batch for headers.
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
endfunction()

# Targets of one kind are compiled with the same flags, and share what is precompiled.
# core: a module without PyTorch; torch: one with; test: a test program without; bindings: for one target alone.
function(medley_precompile target kind)
  if(NOT MEDLEY_BATCHES)
    return()
  endif()
  set(core_headers ${medley_std_headers} <nlohmann/json.hpp>)
  set(test_headers ${core_headers} <gmock/gmock.h>)
  set(torch_headers ${medley_std_headers} ${medley_torch_headers})
  set(bindings_headers ${medley_std_headers} <nanobind/nanobind.h> <nanobind/stl/string.h>
      <nanobind/stl/vector.h>)
  if(kind STREQUAL bindings)
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
