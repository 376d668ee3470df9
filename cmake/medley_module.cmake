# medley_module(<name> [FOR_TESTS] [COLD] [TORCH] [DEPS <module>...] [HEADERS <module>...]
#               [LIBS <target>...] [PROGRAM <program>] [TEST_DEPS <module>...]
#               [TEST_LIBS <target>...])
#
# Adds a folder as one static library with every *.cpp, except *_test.cpp, which form the test
# program <name>_test, and main.cpp, which gives the executable PROGRAM. FOR_TESTS: not linked into
# shipped targets, and built on demand only. COLD: its speed does not matter; -O1 compiles in three
# quarters of the time. TORCH: it includes and links PyTorch, and is built with MEDLEY_TORCH only.
# DEPS, HEADERS: the modules that it may include (checked by scripts/check_layers.py), those of
# HEADERS without linking them. Tests may include TEST_DEPS too. LIBS: private to module and test.
function(medley_module name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "FOR_TESTS;COLD;TORCH" "PROGRAM" "DEPS;HEADERS;LIBS;TEST_DEPS;TEST_LIBS")
  if(arg_TORCH)
    if(NOT MEDLEY_TORCH)
      return()
    endif()
    list(APPEND arg_LIBS medley::torch)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS *.cpp)
  file(GLOB tests CONFIGURE_DEPENDS *_test.cpp)
  list(REMOVE_ITEM sources ${tests} ${CMAKE_CURRENT_SOURCE_DIR}/main.cpp)
  list(TRANSFORM arg_DEPS PREPEND medley_)
  list(TRANSFORM arg_TEST_DEPS PREPEND medley_)
  if(NOT sources)
    message(WARNING "medley/${name} has no sources yet")
    return()
  endif()

  add_library(medley_${name} STATIC ${sources})
  target_include_directories(medley_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(medley_${name} PUBLIC ${arg_DEPS} fmt::fmt PRIVATE ${arg_LIBS})
  medley_options(medley_${name})
  medley_batch(medley_${name} 22)
  if(arg_TORCH)
    medley_precompile(medley_${name} torch)
    set_property(GLOBAL APPEND PROPERTY MEDLEY_TORCH_MODULES medley_${name})
  else()
    # Without fused multiply-adds costs and times are equal on every machine.
    target_compile_options(medley_${name} PRIVATE -Wconversion -ffp-contract=off)
    if("nlohmann_json::nlohmann_json" IN_LIST arg_LIBS)
      medley_precompile(medley_${name} json)
    else()
      medley_precompile(medley_${name} core)
    endif()
    if(arg_COLD)
      target_compile_options(medley_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
    if(arg_FOR_TESTS)
      set_target_properties(medley_${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    else()
      set_property(GLOBAL APPEND PROPERTY MEDLEY_CORE_MODULES medley_${name})
    endif()
  endif()

  if(arg_PROGRAM)
    add_executable(${arg_PROGRAM} main.cpp)
    target_link_libraries(${arg_PROGRAM} PRIVATE medley_${name})
    medley_program(${arg_PROGRAM})
  endif()

  if(MEDLEY_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE medley_${name} ${arg_TEST_DEPS} ${arg_LIBS}
                          ${arg_TEST_LIBS} GTest::gmock_main)
    medley_sanitize(${name}_test)
    medley_batch(${name}_test 22)
    # The slow code is in the modules: tests without optimization build in half the time.
    target_compile_options(${name}_test PRIVATE -O0)
    if(NOT arg_TORCH)
      medley_precompile(${name}_test test)
    endif()
    add_test(NAME ${name} COMMAND ${name}_test WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS unit)
    if(NOT arg_TORCH)
      set_property(GLOBAL APPEND PROPERTY MEDLEY_TEST_PROGRAMS ${name}_test)
    endif()
  endif()
endfunction()

# Links libraries before tests: of a template in both, the linker takes the first. Since tests are
# not optimized, they then run in two thirds of the time.
function(medley_libraries_before_tests)
  get_property(programs GLOBAL PROPERTY MEDLEY_TEST_PROGRAMS)
  foreach(program IN LISTS programs)
    set(libraries)
    set(left ${program})
    while(left)
      list(POP_FRONT left target)
      get_target_property(linked ${target} LINK_LIBRARIES)
      list(FILTER linked INCLUDE REGEX "^medley_")
      list(REMOVE_ITEM linked ${libraries})
      list(APPEND libraries ${linked})
      list(APPEND left ${linked})
    endwhile()
    list(REMOVE_DUPLICATES libraries)
    list(TRANSFORM libraries REPLACE ".+" "$<TARGET_FILE:\\0>")
    target_link_options(${program} PRIVATE LINKER:--whole-archive ${libraries} LINKER:--no-whole-archive)
  endforeach()
endfunction()

# Configures an executable other than a test. It links mimalloc first, with which planning, which
# allocates many small pieces, takes about two thirds of the time compared with glibc's malloc.
function(medley_program target)
  medley_options(${target})
  if(mimalloc_FOUND AND NOT MEDLEY_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,--no-as-needed)
    target_link_libraries(${target} PRIVATE mimalloc)
  endif()
endfunction()

function(medley_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
    # False alarms on std::string and std::optional: gcc bugs 105651 and 80635.
    target_compile_options(${target} PRIVATE -Wno-restrict -Wno-maybe-uninitialized)
    if(MEDLEY_BATCHES)
      # gcc no longer recognises system headers as such.
      target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow
                             -Wno-stringop-overread)
    endif()
  endif()
  medley_sanitize(${target})
endfunction()

function(medley_sanitize target)
  if(MEDLEY_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${MEDLEY_SANITIZE} -fno-sanitize-recover=all
                           -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${MEDLEY_SANITIZE})
  endif()
endfunction()
