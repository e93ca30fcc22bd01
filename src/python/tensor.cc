#include "python/tensor.h"

#include <nanobind/ndarray.h>

#include <algorithm>

namespace tessera::python {
namespace {

using nb::dlpack::dltensor;

// ---- Layouts of others, as their documents fix them ----

// NumPy's array interface, C side (numpy.org/doc/stable/reference/arrays.interface.html).
struct ArrayInterface {
  int two;
  int nd;
  char typekind;
  int itemsize;
  int flags;
  intptr_t* shape;
  intptr_t* strides;  // bytes
  void* data;
  PyObject* descr;
};
constexpr int kNotSwapped = 0x0200;
constexpr int kWriteable = 0x0400;

// DLPack 1 (dmlc.github.io/dlpack): the versioned managed tensor, and the head of the C exchange table up to the one
// entry used.
struct ManagedVersioned {
  uint32_t major, minor;
  void* manager;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  dltensor tensor;
};
constexpr uint64_t kReadOnly = 1;

struct ExchangeTable {
  uint32_t major, minor;
  void* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*borrow)(void* object, dltensor* out);  // -1 and a Python exception on failure; may be null
};

constexpr int32_t kDeviceCpu = 1, kDeviceCudaHost = 3, kDeviceRocmHost = 11;

// ---- Python objects that every call needs, made once and never destroyed ----

struct Names {
  nb::object array_struct = intern("__array_struct__");
  nb::object exchange = intern("__dlpack_c_exchange_api__");
  nb::object dlpack = intern("__dlpack__");
  nb::object dtype = intern("dtype");
  nb::object requires_grad = intern("requires_grad");
  nb::object ndarray = nb::module_::import_("numpy").attr("ndarray");

  static nb::object intern(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
};

const Names& names() {
  static const Names* const n = new Names;
  return *n;
}

bool is_numpy(nb::handle value) {
  return PyObject_TypeCheck(value.ptr(), reinterpret_cast<PyTypeObject*>(names().ndarray.ptr()));
}

std::string text_of(nb::handle value) { return nb::str(value).c_str(); }

std::string message(const Argument& a, const std::string& text) {
  const std::string element = a.index < 0 ? "" : "[" + std::to_string(a.index) + "]";
  return std::string(a.op) + ": " + a.name + element + (*a.part == '\0' ? "" : " ") + a.part + " " + text;
}

[[noreturn]] void refuse_because(nb::python_error& cause, const Argument& a, const std::string& text) {
  const std::string why = text_of(cause.value());
  const std::string full = message(a, text + ": " + why.substr(0, why.find('\n')));  // torch adds its stack below
  nb::raise_from(cause, PyExc_ValueError, "%s", full.c_str());
}

[[noreturn]] void refuse_dtype(nb::handle value, const Argument& a, const char* dtypes) {
  std::string name = text_of(nb::getattr(value, "dtype", nb::str("of an unknown kind")));
  name.erase(0, name.rfind('.') + 1);  // "torch.int64"
  refuse(PyExc_TypeError, a, "is " + name + "; expected " + dtypes);
}

// ---- The three ways ----

tessera_dtype dtype_of(const nb::dlpack::dtype& t) {
  using Code = nb::dlpack::dtype_code;
  if (t.lanes != 1) return TESSERA_OTHER_DTYPE;
  if (t.code == static_cast<uint8_t>(Code::Bfloat) && t.bits == 16) return TESSERA_BF16;
  if (t.code == static_cast<uint8_t>(Code::Float) && t.bits == 16) return TESSERA_F16;
  if (t.code == static_cast<uint8_t>(Code::Float) && t.bits == 32) return TESSERA_F32;
  if (t.code == static_cast<uint8_t>(Code::Int) && t.bits == 32) return TESSERA_I32;
  if (t.code == static_cast<uint8_t>(Code::Int) && t.bits == 8) return TESSERA_I8;
  return TESSERA_OTHER_DTYPE;
}

tessera_tensor from_dltensor(const dltensor& t, nb::handle value, const Argument& a, const char* dtypes) {
  const int32_t device = t.device.device_type;
  if (device != kDeviceCpu && device != kDeviceCudaHost && device != kDeviceRocmHost) {
    const std::string where = text_of(nb::getattr(value, "device", nb::str("another device")));
    refuse(PyExc_ValueError, a, "is on " + where + "; expected CPU memory");
  }
  tessera_tensor view{};
  if (t.data == nullptr && std::all_of(t.shape, t.shape + t.ndim, [](int64_t n) { return n > 0; })) {
    refuse(PyExc_ValueError, a, "has no memory: it is a fake tensor, or one without storage");
  }
  view.dtype = dtype_of(t.dtype);
  if (view.dtype == TESSERA_OTHER_DTYPE) refuse_dtype(value, a, dtypes);
  view.data = static_cast<char*>(t.data) + t.byte_offset;
  view.ndim = t.ndim;
  int64_t contiguous = 1;  // producers before DLPack 1.2 may leave the strides out
  for (int32_t i = t.ndim - 1; i >= 0; contiguous *= t.shape[i--]) {
    if (i >= TESSERA_MAX_DIMS) continue;  // the rank alone makes the operator refuse it
    view.shape[i] = t.shape[i];
    view.stride[i] = t.strides != nullptr ? t.strides[i] : contiguous;
  }
  return view;
}

// NumPy has no bfloat16 of its own: ml_dtypes registers one, which the array interface shows as two opaque bytes. Its
// descriptor is one object per process, so that it is compared by name only once.
bool is_bfloat16(nb::handle array) {
  static PyObject* known = nullptr;
  const nb::object dtype = nb::getattr(array, names().dtype);
  if (dtype.ptr() == known) return true;
  if (text_of(dtype) != "bfloat16") return false;
  if (known == nullptr) known = nb::object(dtype).release().ptr();
  return true;
}

tessera_dtype dtype_of(const ArrayInterface& a, nb::handle array) {
  if (a.typekind == 'f' && a.itemsize == 4) return TESSERA_F32;
  if (a.typekind == 'f' && a.itemsize == 2) return TESSERA_F16;
  if (a.typekind == 'i' && a.itemsize == 4) return TESSERA_I32;
  if (a.typekind == 'i' && a.itemsize == 1) return TESSERA_I8;
  if (a.typekind == 'V' && a.itemsize == 2 && is_bfloat16(array)) return TESSERA_BF16;
  return TESSERA_OTHER_DTYPE;
}

View from_numpy(nb::handle array, const Argument& a, const char* dtypes, Access access) {
  const nb::object capsule = nb::getattr(array, names().array_struct);
  const auto* const in = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (in == nullptr) throw nb::python_error();

  View view{{}, nb::borrow(array)};
  view.tensor.dtype = dtype_of(*in, array);
  if (view.tensor.dtype == TESSERA_OTHER_DTYPE) refuse_dtype(array, a, dtypes);
  if (!(in->flags & kNotSwapped)) refuse(PyExc_TypeError, a, "has a foreign byte order; expected the machine's own");
  if (access == Access::kWrite && !(in->flags & kWriteable)) refuse(PyExc_ValueError, a, "is read-only");
  view.tensor.data = in->data;
  view.tensor.ndim = in->nd;
  for (int i = 0; i < std::min(in->nd, TESSERA_MAX_DIMS); ++i) {
    view.tensor.shape[i] = in->shape[i];
    view.tensor.stride[i] = in->strides[i] / in->itemsize;
    if (in->shape[i] > 1 && in->strides[i] % in->itemsize != 0) {
      refuse(PyExc_ValueError, a,
             "has a stride of " + std::to_string(in->strides[i]) + " bytes along axis " + std::to_string(i) +
                 "; expected multiples of " + std::to_string(in->itemsize));
    }
  }
  return view;
}

// Only torch has requires_grad. Under no_grad() nothing is recorded, so nothing can be lost.
void refuse_gradient(nb::handle value, const Argument& a) {
  if (nb::getattr(value, names().requires_grad, nb::none()).ptr() != Py_True) return;
  if (!nb::cast<bool>(nb::module_::import_("torch").attr("is_grad_enabled")())) return;
  refuse(PyExc_NotImplementedError, a,
         "requires a gradient, which would be lost: call .detach() or use torch.no_grad()");
}

const ExchangeTable* exchange_table(nb::handle value) {
  const nb::object capsule = nb::getattr(value.type(), names().exchange, nb::object());
  if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  const auto* const table =
      static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  return table->major == 1 && table->borrow != nullptr ? table : nullptr;
}

View from_exchange(const ExchangeTable& table, nb::handle value, const Argument& a, const char* dtypes) {
  dltensor t;
  refuse_gradient(value, a);
  if (table.borrow(value.ptr(), &t) != 0) {
    nb::python_error cause;
    refuse_because(cause, a, "cannot be read in place");
  }
  View view{from_dltensor(t, value, a, dtypes), nb::borrow(value)};
  // torch negates the imaginary part of a conjugated tensor only when it is read; such a view is never dense.
  const bool dense = t.ndim == 0 || view.tensor.stride[std::min(t.ndim, TESSERA_MAX_DIMS) - 1] == 1;
  if (!dense && nb::hasattr(value, "is_neg") && nb::cast<bool>(value.attr("is_neg")())) {
    refuse(PyExc_ValueError, a, "is a lazily negated view: call .resolve_neg()");
  }
  return view;
}

nb::object dlpack_capsule(nb::handle value) {
  const nb::object method = nb::getattr(value, names().dlpack);
  try {
    return method(nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_TypeError)) throw;  // a producer from before DLPack 1 does not know the argument
  }
  return method();
}

View from_dlpack(nb::handle value, const Argument& a, const char* dtypes, Access access) {
  refuse_gradient(value, a);
  nb::object capsule;
  try {
    capsule = dlpack_capsule(value);
  } catch (nb::python_error& cause) {
    refuse_because(cause, a, "cannot be read in place");
  }
  // The capsule keeps its name, so its own destructor gives the memory back.
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* const managed =
        static_cast<const ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->major != 1) refuse(PyExc_ValueError, a, "is exported by an unknown version of DLPack; expected 1");
    if (access == Access::kWrite && (managed->flags & kReadOnly)) refuse(PyExc_ValueError, a, "is read-only");
    return {from_dltensor(managed->tensor, value, a, dtypes), std::move(capsule)};
  }
  const void* const managed = PyCapsule_GetPointer(capsule.ptr(), "dltensor");
  if (managed == nullptr) throw nb::python_error();
  // The old form cannot say that memory is read-only.
  if (access == Access::kWrite) refuse(PyExc_ValueError, a, "is exported by a DLPack before 1, hence as read-only");
  return {from_dltensor(*static_cast<const dltensor*>(managed), value, a, dtypes), std::move(capsule)};
}

}  // namespace

void refuse(PyObject* type, const Argument& a, const std::string& text) {
  PyErr_SetString(type, message(a, text).c_str());
  throw nb::python_error();
}

View view_of(nb::handle value, const Argument& a, const char* dtypes, Access access) {
  if (is_numpy(value)) return from_numpy(value, a, dtypes, access);
  if (const ExchangeTable* table = exchange_table(value)) return from_exchange(*table, value, a, dtypes);
  if (nb::hasattr(value, names().dlpack)) return from_dlpack(value, a, dtypes, access);
  refuse(PyExc_TypeError, a,
         "is of type " + text_of(nb::getattr(value.type(), "__name__")) +
             "; expected a torch CPU tensor, a NumPy array or an object with __dlpack__");
}

bool is_tensor(nb::handle value) { return is_numpy(value) || nb::hasattr(value, names().dlpack); }

const char* dtype_name(tessera_dtype dtype) {
  switch (dtype) {
    case TESSERA_BF16: return "bfloat16";
    case TESSERA_F16: return "float16";
    case TESSERA_F32: return "float32";
    case TESSERA_I32: return "int32";
    case TESSERA_I8: return "int8";
    default: return "unknown";
  }
}

}  // namespace tessera::python
