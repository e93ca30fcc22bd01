#include "python/call.h"

#include <cmath>
#include <cstring>

namespace tessera::python {
namespace {

// Making a tensor of some kind, and turning one into another, is Python's business: tessera/_tensors.py.
struct Makers {
  nb::object empty = nb::module_::import_("tessera._tensors").attr("empty");
  nb::object give_back = nb::module_::import_("tessera._tensors").attr("give_back");
};

const Makers& makers() {
  static const Makers* const m = new Makers;
  return *m;
}

std::string shown(nb::handle value) { return nb::str(nb::repr(value)).c_str(); }

}  // namespace

std::string& forced_variant() {
  static thread_local std::string name;
  return name;
}

const tessera_communicator*& communicator() {
  static thread_local const tessera_communicator* ranks = nullptr;
  return ranks;
}

void raise_status(tessera_status status, const char* op, const char* result) {
  const std::string reported = tessera_last_error();
  const size_t name = reported.find(": ");  // several operators may share a C function
  std::string text = name == std::string::npos ? "failed" : reported.substr(name + 2);
  if (result != nullptr && text.rfind(std::string(result) + " ", 0) == 0) text.replace(0, std::strlen(result), "out");
  text = std::string(op) + ": " + text;
  PyObject* type = PyExc_RuntimeError;
  if (status == TESSERA_INVALID_ARGUMENT) type = PyExc_ValueError;
  if (status == TESSERA_TYPE_ERROR) type = PyExc_TypeError;
  if (status == TESSERA_NOT_IMPLEMENTED) type = PyExc_NotImplementedError;
  if (status == TESSERA_OUT_OF_MEMORY) type = PyExc_MemoryError;
  PyErr_SetString(type, text.c_str());
  throw nb::python_error();
}

int64_t integer_of(const Argument& argument, nb::handle value) {
  if (!PyIndex_Check(value.ptr()) || is_tensor(value)) {
    refuse(PyExc_TypeError, argument, "is " + shown(value) + "; expected an int");
  }
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  const long long result = PyLong_AsLongLong(index.ptr());
  if (result == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    refuse(PyExc_ValueError, argument, "is " + shown(value) + "; expected a number that fits int64");
  }
  return result;
}

int32_t int32_of(const Argument& argument, nb::handle value) {
  const int64_t result = integer_of(argument, value);
  if (result < INT32_MIN || result > INT32_MAX) {
    refuse(PyExc_ValueError, argument, "is " + std::to_string(result) + "; expected a number that fits int32");
  }
  return static_cast<int32_t>(result);
}

Call::Call(const char* op, nb::handle backend) : op_(op), variant_(forced_variant()) {
  const bool reference = nb::isinstance<nb::str>(backend) && backend.equal(nb::str("reference"));
  if (!reference && !(nb::isinstance<nb::str>(backend) && backend.equal(nb::str("native")))) {
    refuse(PyExc_ValueError, {op, "backend"}, "is " + shown(backend) + "; expected 'native' or 'reference'");
  }
  context_.backend = reference ? TESSERA_BACKEND_REFERENCE : TESSERA_BACKEND_NATIVE;
  context_.variant = variant_.empty() ? nullptr : variant_.c_str();
  owners_.reserve(10);
}

tessera_tensor Call::part(const Argument& argument, nb::handle value, const char* dtypes) {
  View view = view_of(value, argument, dtypes, Access::kRead);
  owners_.push_back(std::move(view.owner));
  if (!like_.is_valid()) like_ = nb::borrow(value);
  return view.tensor;
}

tessera_tensor Call::input(const char* name, nb::handle value, const char* dtypes) {
  const tessera_tensor view = part({op_, name}, value, dtypes);
  require_axes(name, view);
  return view;
}

tessera_tensor Call::optional_input(const char* name, nb::handle value, const char* dtypes) {
  return value.is_none() ? tessera_tensor{} : input(name, value, dtypes);
}

void Call::require_axes(const char* name, const tessera_tensor& view) const {
  if (view.ndim == 0) refuse(PyExc_ValueError, {op_, name}, "has no axes");
}

tessera_tensor Call::q_offset(nb::handle value, int64_t batch) {
  if (value.is_none()) return {};
  if (is_tensor(value)) return input("q_offset", value, kI32);
  if (!PyIndex_Check(value.ptr())) {
    refuse(PyExc_TypeError, {op_, "q_offset"}, "is " + shown(value) + "; expected an int or int32 [B]");
  }
  offset_ = int32_of({op_, "q_offset"}, value);
  return {&offset_, TESSERA_I32, 1, {batch}, {0}};
}

void Call::refuse_parallel() const {
  PyErr_SetString(PyExc_NotImplementedError, (std::string(op_) + ": cannot be shared between ranks").c_str());
  throw nb::python_error();
}

int64_t Call::positive(const char* name, nb::handle value) const {
  const int64_t result = integer(name, value);
  if (result < 1) refuse(PyExc_ValueError, {op_, name}, "is " + std::to_string(result) + "; expected at least 1");
  return result;
}

void Call::require_same(const char* name, nb::handle value, int64_t size, const char* what) const {
  if (value.is_none()) return;
  const int64_t number = integer(name, value);
  if (number == size) return;
  refuse(PyExc_ValueError, {op_, name},
         "is " + std::to_string(number) + "; expected " + std::to_string(size) + " (" + what + ")");
}

bool Call::flag(const char* name, nb::handle value) const {
  if (!PyBool_Check(value.ptr())) refuse(PyExc_TypeError, {op_, name}, "is " + shown(value) + "; expected a bool");
  return value.ptr() == Py_True;
}

const float* Call::optional_float(const char* name, nb::handle value) {
  if (value.is_none()) return nullptr;
  float_ = static_cast<float>(number(name, value));
  return &float_;
}

double Call::number(const char* name, nb::handle value) const {
  const double result = PyFloat_AsDouble(value.ptr());
  if (result == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    refuse(PyExc_TypeError, {op_, name}, "is " + shown(value) + "; expected a float");
  }
  return result;
}

const float* Call::optional_scale(nb::handle scale, nb::handle score_scale) {
  if (!scale.is_none() && !score_scale.is_none()) {
    refuse(PyExc_ValueError, {op_, "scale"}, "and score_scale exclude each other");
  }
  const bool divides = scale.is_none();
  const char* const name = divides ? "score_scale" : "scale";
  const nb::handle value = divides ? score_scale : scale;
  if (optional_float(name, value) == nullptr) return nullptr;
  if (divides) float_ = 1 / float_;
  if (!(float_ > 0 && std::isfinite(float_))) {
    refuse(PyExc_ValueError, {op_, name}, "is " + shown(value) + "; expected a positive number");
  }
  return &float_;
}

Call::Output Call::new_output(const Shape& shape, const char* dtype_name) const {
  const nb::object sizes = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (size_t i = 0; i < shape.size(); ++i) {
    PyTuple_SetItem(sizes.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
  }
  nb::object object;
  try {
    object = makers().empty(like_, sizes, dtype_name);
  } catch (nb::python_error& cause) {
    const bool too_large =
        cause.matches(PyExc_MemoryError) || cause.matches(PyExc_ValueError) || cause.matches(PyExc_RuntimeError);
    if (!too_large) throw;
    nb::raise_from(cause, PyExc_MemoryError, "%s: no memory for a result of shape %s", op_, shown(sizes).c_str());
  }
  return {view_of(object, {op_, "result"}, kFloats, Access::kRead).tensor, object, false};
}

Call::Output Call::output(const char* name, nb::handle given, const char* dtypes, const Shape& shape,
                          tessera_dtype dtype) {
  if (given.is_none()) return new_output(shape, dtype_name(dtype));
  const tessera_tensor view = shape.empty() ? writable({op_, name}, given, dtypes) : destination(name, given, dtypes);
  return {view, nb::borrow(given), true};
}

Call::Output Call::out(const char* c_name, nb::handle given, const char* dtypes, const Shape& shape,
                       tessera_dtype dtype) {
  result_ = c_name;
  return output("out", given, dtypes, shape, dtype);
}

std::vector<nb::object> Call::outs(nb::handle out, size_t count, const char* expected) const {
  if (out.is_none()) return std::vector<nb::object>(count, nb::none());
  if (!PyTuple_Check(out.ptr()) || nb::len(out) != count) {
    refuse(PyExc_TypeError, {op_, "out"}, std::string("is no ") + expected);
  }
  std::vector<nb::object> targets;
  for (size_t i = 0; i < count; ++i) targets.emplace_back(out[i]);
  return targets;
}

tessera_tensor Call::destination(const char* name, nb::handle value, const char* dtypes) {
  const tessera_tensor view = writable({op_, name}, value, dtypes);
  require_axes(name, view);
  return view;
}

tessera_tensor Call::writable(const Argument& argument, nb::handle value, const char* dtypes) {
  View view = view_of(value, argument, dtypes, Access::kWrite);
  owners_.push_back(std::move(view.owner));
  return view.tensor;
}

nb::object Call::result(const Output& output) const {
  if (output.given || output.object.type().is(like_.type())) return output.object;
  return makers().give_back(output.object, like_);
}

}  // namespace tessera::python
