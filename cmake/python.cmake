# The Python module tessera._core and its type stub. nanobind comes with the Python that will import the module; where it
# lies is asked for anew each time, since an isolated build has it in a directory that is gone by the next.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
                OUTPUT_VARIABLE nanobind_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

# From Python 3.12 on one module serves every later version: it keeps to the stable ABI, which nanobind needs 3.12 for.
file(GLOB python_sources CONFIGURE_DEPENDS src/python/*.cc)
nanobind_add_module(_core STABLE_ABI NB_STATIC NB_SUPPRESS_WARNINGS ${python_sources})
target_link_libraries(_core PRIVATE tessera_options ${object_libraries})
install(TARGETS _core LIBRARY DESTINATION tessera COMPONENT python)

if(NOT CMAKE_CROSSCOMPILING)
  nanobind_add_stub(_core_stub MODULE _core OUTPUT _core.pyi PYTHON_PATH $<TARGET_FILE_DIR:_core> DEPENDS _core
                    PATTERN_FILE ${PROJECT_SOURCE_DIR}/cmake/core.pyi.patterns)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_core.pyi DESTINATION tessera COMPONENT python)
endif()
