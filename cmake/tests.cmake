# One GoogleTest binary from tests/cpp, and each example as a test of its own.
if(CMAKE_CROSSCOMPILING)
  # Distributions ship GoogleTest built for the host only, but with its sources.
  set(TESSERA_GTEST_SOURCE /usr/src/googletest CACHE PATH "Sources of GoogleTest, for cross builds")
  set(INSTALL_GTEST OFF CACHE INTERNAL "")
  add_subdirectory(${TESSERA_GTEST_SOURCE} ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
else()
  find_package(GTest REQUIRED)
endif()

file(GLOB test_sources CONFIGURE_DEPENDS tests/cpp/*_test.cc)
if(test_sources)
  add_executable(tessera_tests ${test_sources})
  target_include_directories(tessera_tests PRIVATE tests/cpp)
  target_link_libraries(tessera_tests PRIVATE tessera_options ${object_libraries} GTest::gtest_main)
  # Under an emulator they take minutes: in shares, which `ctest --parallel` runs side by side.
  set(shares 1)
  if(CMAKE_CROSSCOMPILING)
    set(shares 8)
    set_source_files_properties(tests/cpp/runtime_test.cc PROPERTIES COMPILE_DEFINITIONS TESSERA_EMULATED_TESTS=1)
  endif()
  foreach(share RANGE 1 ${shares})
    add_test(NAME tessera_tests_${share} COMMAND tessera_tests --gtest_brief=1)
    math(EXPR index "${share} - 1")
    set_tests_properties(tessera_tests_${share} PROPERTIES
      TIMEOUT 3600 ENVIRONMENT "GTEST_TOTAL_SHARDS=${shares};GTEST_SHARD_INDEX=${index}")
  endforeach()
endif()

# Those in C keep to the letter of C99.
function(add_example name)
  add_executable(example_${name} ${ARGN})
  set_target_properties(example_${name} PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF)
  target_compile_options(example_${name} PRIVATE $<$<COMPILE_LANGUAGE:C>:-pedantic>)
  target_link_libraries(example_${name} PRIVATE tessera_options tessera::tessera)
  add_test(NAME example_${name} COMMAND example_${name})
endfunction()

file(GLOB single_sources CONFIGURE_DEPENDS examples/*.cc examples/c/*.c examples/parallel_for/*.cc)
foreach(source ${single_sources})
  cmake_path(GET source FILENAME name)
  string(REPLACE "." "_" name ${name})
  add_example(${name} ${source})
endforeach()
file(GLOB ggml_host_sources CONFIGURE_DEPENDS examples/ggml_host/*.cc)
add_example(ggml_host ${ggml_host_sources})

# As jobs of several ranks, on as many processors as there are. Open MPI does not start for root unless it is told so twice.
if(TARGET tessera_mpi)
  foreach(name q_parallel context_parallel)
    add_executable(example_${name} examples/distributed/${name}.cc)
    target_link_libraries(example_${name} PRIVATE tessera_options tessera_mpi)
    foreach(ranks 1 3)
      add_test(NAME example_${name}_${ranks}
               COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:example_${name}>)
      set_tests_properties(example_${name}_${ranks} PROPERTIES TIMEOUT 300
        ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1")
    endforeach()
  endforeach()
else()
  message(WARNING "no tests of tessera::mpi: MPI was not found")
endif()

# Projects of someone else's, which know none of our flags.
if(PROJECT_IS_TOP_LEVEL AND TESSERA_INSTALL AND NOT CMAKE_CROSSCOMPILING AND NOT TESSERA_EMULATE_AVX512
   AND NOT CMAKE_CXX_FLAGS_DEBUG MATCHES "-fsanitize")
  include(cmake/package_tests.cmake)
endif()
