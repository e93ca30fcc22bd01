// Views of the tensors that Python hands over. Nothing is copied: a view is read from whatever the producer offers at
// the lowest cost, which keeps a call of five tensors within a few microseconds.
//
//   NumPy array            __array_struct__           one capsule; says byte order and writability; carries bfloat16
//   too,
//                                                     which NumPy exports neither by the buffer protocol nor by DLPack
//   torch tensor           DLPack C exchange table    a C call, nothing allocated
//   anything with DLPack   __dlpack__                 a Python call; DLPack 1 where the producer has it, else the old
//   form
#ifndef TESSERA_PYTHON_TENSOR_H_
#define TESSERA_PYTHON_TENSOR_H_

#include <nanobind/nanobind.h>

#include <string>

#include "tessera/tessera.h"

namespace tessera::python {

namespace nb = nanobind;

// What a message is about: an argument of an operator; with `part`, that part of the argument's element `index`.
struct Argument {
  const char* op;
  const char* name;
  int64_t index = -1;  // negative: the whole argument
  const char* part = "";
};

// Raises `type` with "<op>: <argument> <text>".
[[noreturn]] void refuse(PyObject* type, const Argument& argument, const std::string& text);

enum class Access { kRead, kWrite };

struct View {
  tessera_tensor tensor;
  nb::object owner;  // what keeps the memory; to be held until the call returns and released under the GIL
};

// `dtypes` says in a message what the argument takes. Shapes, strides and values are left to the operator's own check;
// what a tessera_tensor cannot express is refused here: no tensor at all, another device, a foreign byte order or
// dtype, byte strides between elements, read-only memory for an output, a gradient that would be lost.
View view_of(nb::handle value, const Argument& argument, const char* dtypes, Access access);

// True for what view_of() takes as a tensor, whatever its dtype and device.
bool is_tensor(nb::handle value);

// "bfloat16" and so on, as NumPy (with ml_dtypes) and torch spell them.
const char* dtype_name(tessera_dtype dtype);

}  // namespace tessera::python

#endif  // TESSERA_PYTHON_TENSOR_H_
