# Precompiles common headers, and compiles the files of a module in batches, which halves a clean
# build. Does neither with ccache, which caches single files.
if(MEDLEY_CCACHE)
  set(default OFF)
else()
  set(default ON)
endif()
option(MEDLEY_BATCHES "Precompile headers, and compile the files of a module in batches" ${default})

if(MEDLEY_BATCHES AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # A batch fits into a gigabyte: collecting garbage below that would cost a twelfth of the time.
  add_compile_options("SHELL:--param ggc-min-heapsize=1000000")
endif()

set(medley_std_headers <algorithm> <array> <cmath> <cstdint> <functional> <limits> <map> <memory>
    <numeric> <optional> <set> <span> <sstream> <string> <string_view> <tuple> <utility> <variant>
    <vector> <fmt/format.h>)
set(medley_torch_headers <ATen/core/Tensor.h> <ATen/core/dispatch/Dispatcher.h> <ATen/core/grad_mode.h>
    <ATen/ops/empty.h>)

# If names of two files collide, one has SKIP_UNITY_BUILD_INCLUSION in its CMakeLists.txt.
# Batches have equal sizes of at most `most` files, to compile common templates once.
function(medley_batch target most)
  if(MEDLEY_BATCHES)
    get_target_property(sources ${target} SOURCES)
    list(LENGTH sources files)
    math(EXPR batches "(${files} + ${most} - 1) / ${most}")
    math(EXPR size "(${files} + ${batches} - 1) / ${batches}")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      # gcc treats all files but the first of a batch as headers.
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
endfunction()

# Targets of one kind have the same flags, and share precompiled headers. core: a module without
# PyTorch; json: a core module with JSON, which costs each batch half a second; torch: one with
# PyTorch; test: a test program without.
function(medley_precompile target kind)
  if(NOT MEDLEY_BATCHES)
    return()
  endif()
  set(core_headers ${medley_std_headers} <fmt/ranges.h>)
  set(json_headers ${core_headers} <nlohmann/json.hpp>)
  set(test_headers ${json_headers} <gmock/gmock.h>)
  set(torch_headers ${medley_std_headers} ${medley_torch_headers})
  get_property(first GLOBAL PROPERTY MEDLEY_PRECOMPILED_${kind})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${${kind}_headers})
    set_property(GLOBAL PROPERTY MEDLEY_PRECOMPILED_${kind} ${target})
  endif()
endfunction()
