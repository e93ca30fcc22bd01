// One call of an operator from Python: takes the arguments apart, makes the outputs that were not given, runs the C
// function with the GIL released, and raises what it reports. Whatever memory the C function sees is kept alive until
// the Call ends.
#ifndef TESSERA_PYTHON_CALL_H_
#define TESSERA_PYTHON_CALL_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "python/tensor.h"
#include "tessera/parallel.h"

namespace tessera::python {

constexpr char kFloats[] = "bfloat16, float16 or float32";
constexpr char kF32[] = "float32";
constexpr char kI32[] = "int32";
constexpr char kI8[] = "int8";

using Shape = std::vector<int64_t>;

// Of more axes than a tessera_tensor has room for, which every operator refuses, the first.
inline Shape shape_of(const tessera_tensor& t) { return Shape(t.shape, t.shape + std::min(t.ndim, TESSERA_MAX_DIMS)); }

// The variant that this thread's calls are forced to use; empty: none.
std::string& forced_variant();

// The ranks that this thread's calls are shared between; null: none.
const tessera_communicator*& communicator();

// An operator's C function, and the one for calls by several ranks; null: it has none.
template <class Args>
struct Functions {
  tessera_status (*alone)(const Args*, const tessera_context*);
  tessera_status (*parallel)(const Args*, const tessera_communicator*, const tessera_context*) = nullptr;
};

// Raises what a C function reported on this thread, under the name that Python has for the operator; `result` is what C
// calls the output that Python calls out.
[[noreturn]] void raise_status(tessera_status status, const char* op, const char* result = nullptr);

int64_t integer_of(const Argument& argument, nb::handle value);
int32_t int32_of(const Argument& argument, nb::handle value);

class Call {
 public:
  // `backend`: "native" or "reference".
  Call(const char* op, nb::handle backend);

  const char* op() const { return op_; }

  // Results are of the kind (NumPy, torch, ...) of the first input.
  tessera_tensor input(const char* name, nb::handle value, const char* dtypes);
  // None: absent.
  tessera_tensor optional_input(const char* name, nb::handle value, const char* dtypes);
  // A tensor of a list of tuples of them, which may be without axes.
  tessera_tensor part(const Argument& argument, nb::handle value, const char* dtypes);

  // None: absent. An int: that offset for every request.
  tessera_tensor q_offset(nb::handle value, int64_t batch);

  int64_t integer(const char* name, nb::handle value) const { return integer_of({op_, name}, value); }
  int64_t positive(const char* name, nb::handle value) const;  // 0 is C's "default"; from Python it is a mistake
  // What Python says twice is compared with what the tensors say. None: it is not said.
  void require_same(const char* name, nb::handle value, int64_t size, const char* what) const;
  bool flag(const char* name, nb::handle value) const;
  const float* optional_float(const char* name, nb::handle value);  // None: nullptr
  // A positive multiplier, or a positive divisor in its place.
  const float* optional_scale(nb::handle scale, nb::handle score_scale);
  double number(const char* name, nb::handle value) const;

  // An output: the given tensor, or if None a new one.
  struct Output {
    tessera_tensor view;
    nb::object object;
    bool given;
  };
  // One that has to be given, and is changed in place.
  tessera_tensor destination(const char* name, nb::handle value, const char* dtypes);
  Output output(const char* name, nb::handle given, const char* dtypes, const Shape& shape, tessera_dtype dtype);
  // The only result, out in Python and `c_name` in C.
  Output out(const char* c_name, nb::handle given, const char* dtypes, const Shape& shape, tessera_dtype dtype);
  // The tensors of a tuple `out`, which `expected` describes; None for each if out is None.
  std::vector<nb::object> outs(nb::handle out, size_t count, const char* expected) const;
  Output new_output(const Shape& shape, const char* dtype_name) const;

  template <class Args>
  void run(tessera_status (*function)(const Args*, const tessera_context*), const Args& args) const {
    run(Functions<Args>{function}, args);
  }
  template <class Args>
  void run(const Functions<Args>& functions, const Args& args) const {
    const tessera_communicator* const ranks = communicator();
    if (ranks == nullptr) return run([&] { return functions.alone(&args, &context_); });
    if (functions.parallel == nullptr) refuse_parallel();
    run([&] { return functions.parallel(&args, ranks, &context_); });
  }
  template <class F>
  void run(const F& function) const {
    tessera_status status;
    {
      nb::gil_scoped_release unlocked;
      status = function();
    }
    if (status != TESSERA_OK) raise_status(status, op_, result_);
  }
  // What a plan's C function explains; nothing is computed.
  template <class Args>
  nb::str explain(tessera_status (*function)(const Args*, const tessera_context*, char*, size_t),
                  const Args& args) const {
    char text[8192];
    run([&] { return function(&args, &context_, text, sizeof text); });
    return nb::str(text);
  }

  // What the caller gets: a given tensor itself, a new one in the kind of the first input.
  nb::object result(const Output& output) const;

 private:
  // To C, a tensor without axes is one that was not given.
  void require_axes(const char* name, const tessera_tensor& view) const;

  [[noreturn]] void refuse_parallel() const;
  tessera_tensor writable(const Argument& argument, nb::handle value, const char* dtypes);

  const char* op_;
  const char* result_ = nullptr;
  nb::object like_;
  std::string variant_;
  tessera_context context_{};
  std::vector<nb::object> owners_;
  int32_t offset_ = 0;
  float float_ = 0;
};

}  // namespace tessera::python

#endif  // TESSERA_PYTHON_CALL_H_
