# medley::torch: libtorch in the wheel of MEDLEY_PYTHON.
# medley::torch_python: the same, and the conversions between torch::Tensor and Python.
#
# TorchConfig.cmake is not used: for a CUDA wheel it requires a CUDA toolkit, unlike Medley.
#
# An isolated build of pip hides the environment's packages by PYTHONPATH alone. -I ignores that, so
# a wheel is built against the PyTorch of the environment.
foreach(isolation "" -I)
  execute_process(
    COMMAND ${MEDLEY_PYTHON} ${isolation} -c "import torch, pathlib; print(pathlib.Path(torch.__file__).parent)"
    OUTPUT_VARIABLE torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
  if(status EQUAL 0)
    break()
  endif()
endforeach()
if(NOT status EQUAL 0)
  message(FATAL_ERROR "MEDLEY_TORCH needs PyTorch in ${MEDLEY_PYTHON}: `make setup` or `pip install torch` "
                      "installs it; MEDLEY_TORCH=OFF builds what plans and does not train")
endif()

add_library(medley_libtorch INTERFACE)
add_library(medley::torch ALIAS medley_libtorch)
target_include_directories(medley_libtorch SYSTEM INTERFACE
  ${torch_folder}/include ${torch_folder}/include/torch/csrc/api/include)
target_link_libraries(medley_libtorch INTERFACE
  ${torch_folder}/lib/libtorch.so ${torch_folder}/lib/libtorch_cpu.so ${torch_folder}/lib/libc10.so
  Threads::Threads)
# Without AT_PER_OPERATOR_HEADERS each batch reads the headers of all 2,000 ops.
target_compile_definitions(medley_libtorch INTERFACE USE_DISTRIBUTED AT_PER_OPERATOR_HEADERS)
target_compile_options(medley_libtorch INTERFACE -Wno-conversion)
# The wheel has headers of its own fmt, which differ from the system's library.
set(is_known)
if(EXISTS ${torch_folder}/include/fmt/base.h)
  file(STRINGS ${torch_folder}/include/fmt/base.h is_known REGEX "define FMT_VERSION 12")
endif()
if(is_known)
  add_library(medley_torch_fmt STATIC cmake/torch_fmt.cpp)
  target_include_directories(medley_torch_fmt SYSTEM PRIVATE ${torch_folder}/include)
  target_link_libraries(medley_libtorch INTERFACE medley_torch_fmt)
else()
  target_compile_definitions(medley_libtorch INTERFACE FMT_HEADER_ONLY)
endif()
# The wheel finds its own dependencies (including CUDA libraries) when it is loaded.
target_link_options(medley_libtorch INTERFACE -Wl,--allow-shlib-undefined
                    -Wl,-rpath-link,${torch_folder}/lib)

add_library(medley_libtorch_python INTERFACE)
add_library(medley::torch_python ALIAS medley_libtorch_python)
target_link_libraries(medley_libtorch_python INTERFACE
  medley_libtorch ${torch_folder}/lib/libtorch_python.so)
