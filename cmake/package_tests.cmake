# The package as its users get it: installed, then found, linked and run by projects that know nothing of this tree.
set(stage ${PROJECT_BINARY_DIR}/stage)
set(consumers ${PROJECT_SOURCE_DIR}/tests/install)
add_test(NAME install COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix ${stage} --component library)
set_tests_properties(install PROPERTIES FIXTURES_SETUP installed)

# Configures, builds and tests `source` in a directory named `name`.
function(add_consumer name source)
  add_test(NAME ${name}
    COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${source} ${PROJECT_BINARY_DIR}/consumers/${name}
            --build-generator ${CMAKE_GENERATOR} --build-noclean
            --build-options -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} ${ARGN}
            --test-command ${CMAKE_CTEST_COMMAND} --output-on-failure --no-tests=error)
endfunction()

foreach(way default static shared)
  add_consumer(use_${way} ${consumers} -DWAY=${way} -DCMAKE_PREFIX_PATH=${stage})
endforeach()
add_consumer(use_from_c ${consumers}/c_only -DCMAKE_PREFIX_PATH=${stage})
add_test(NAME use_pkg_config COMMAND ${consumers}/pkg_config ${stage} ${PROJECT_BINARY_DIR}/consumers/pkg_config
         ${CMAKE_C_COMPILER} ${CMAKE_CXX_COMPILER})
add_test(NAME exports COMMAND ${consumers}/exports ${stage})
if(TARGET tessera_mpi)
  add_consumer(use_mpi ${consumers}/mpi -DCMAKE_PREFIX_PATH=${stage})
  set_tests_properties(use_mpi PROPERTIES FIXTURES_REQUIRED installed)
endif()
set_tests_properties(use_default use_static use_shared use_from_c use_pkg_config exports
                     PROPERTIES FIXTURES_REQUIRED installed)

# Compiles the library once more, without optimisation: a minute and a half of one core the first time.
add_consumer(use_fetched ${consumers} -DWAY=fetched -DTESSERA_SOURCE=${PROJECT_SOURCE_DIR} -DCMAKE_BUILD_TYPE=Debug)
set_tests_properties(use_fetched PROPERTIES TIMEOUT 1800)

# The headers alone, by each compiler there is, as strict as users may be. (Those of an installed package are system headers
# to CMake, about which compilers say nothing.)
set(strict -fsyntax-only -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wcast-qual -Werror
    -I${PROJECT_SOURCE_DIR}/include)
find_program(TESSERA_CLANG NAMES clang++ clang++-16 clang++-14)
mark_as_advanced(TESSERA_CLANG)
set(compilers ${CMAKE_CXX_COMPILER})
if(TESSERA_CLANG)
  list(APPEND compilers ${TESSERA_CLANG})
  list(REMOVE_DUPLICATES compilers)
endif()
foreach(compiler ${compilers})
  cmake_path(GET compiler FILENAME name)
  add_test(NAME headers_c99_${name} COMMAND ${compiler} -x c -std=c99 ${strict} ${consumers}/consumer.c)
  add_test(NAME headers_cxx20_${name} COMMAND ${compiler} -std=c++20 ${strict} -Wold-style-cast ${consumers}/consumer.cc)
  add_test(NAME headers_cxx11_${name}
           COMMAND ${compiler} -x c++ -std=c++11 ${strict} -Wold-style-cast -include tessera/tessera.h /dev/null)
endforeach()
