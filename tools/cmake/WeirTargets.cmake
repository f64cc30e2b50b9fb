# Build rules shared by every folder: compiler warnings, sanitizers, ccache, libraries and tests.

find_program(WEIR_CCACHE ccache)
if(WEIR_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness that ccache asks for before it caches what a precompiled header takes part in.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${WEIR_CCACHE})
endif()

# -Wno-restrict: GCC 12 warns of overlapping copies in std::string concatenation that cannot happen (GCC bug 105329).
add_library(weir_options INTERFACE)
target_compile_options(weir_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-restrict -Wnon-virtual-dtor -Woverloaded-virtual
                       $<$<BOOL:${WEIR_WERROR}>:-Werror>)
if(WEIR_SANITIZE)
  target_compile_options(weir_options INTERFACE -fsanitize=${WEIR_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(weir_options INTERFACE -fsanitize=${WEIR_SANITIZE})
endif()

# Lets a target use libtorch's precompiled header.
function(weir_use_torch_pch target)
  target_compile_options(${target} PRIVATE -fPIC)
  target_precompile_headers(${target} REUSE_FROM weir_torch_pch)
endfunction()

# weir_library(NAME [SOURCES ...] [LINK public...] [PRIVATE private...] [TORCH])
# makes target weir_NAME, alias weir::NAME, with the public headers of ./include. TORCH links libtorch and uses the
# shared precompiled header: no other target sees libtorch's headers.
function(weir_library name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;LINK;PRIVATE" ${ARGN})
  set(target weir_${name})
  if(arg_SOURCES)
    add_library(${target} ${arg_SOURCES})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:weir_options> ${arg_PRIVATE})
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(weir::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} ${scope} ${arg_LINK})
  if(arg_TORCH)
    target_link_libraries(${target} ${scope} weir::torch)
    if(arg_SOURCES)
      weir_use_torch_pch(${target})
    endif()
  endif()
  set_property(GLOBAL APPEND PROPERTY WEIR_LIBRARIES ${target})
endfunction()

# weir_test(NAME SOURCES ... [LINK ...] [LABELS ...] [TIMEOUT s] [TORCH]) makes test program test_NAME and one ctest entry.
# Tests find their data under the compile definition WEIR_FIXTURES.
function(weir_test name)
  cmake_parse_arguments(arg "TORCH" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(test_${name} ${arg_SOURCES})
  if(arg_TORCH)
    weir_use_torch_pch(test_${name})
  endif()
  target_link_libraries(test_${name} PRIVATE weir_options weir_test_main ${arg_LINK})
  target_compile_definitions(test_${name} PRIVATE WEIR_FIXTURES="${CMAKE_SOURCE_DIR}/tests/fixtures")
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND test_${name})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(WEIR_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 5")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}"
                       ENVIRONMENT "OPENBLAS_NUM_THREADS=1;OMP_NUM_THREADS=1")
endfunction()
