// The parts of the module tessera._core.
#ifndef TESSERA_PYTHON_MODULE_H_
#define TESSERA_PYTHON_MODULE_H_

#include <nanobind/nanobind.h>

namespace tessera::python {

void bind_operators(nanobind::module_& m);
void bind_info(nanobind::module_& m);

}  // namespace tessera::python

#endif  // TESSERA_PYTHON_MODULE_H_
