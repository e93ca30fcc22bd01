// What the library is, what it found, and how it may be driven: threads, variants, measured ceilings.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "cpu/features.h"
#include "python/call.h"
#include "python/module.h"

namespace tessera::python {
namespace {

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown";
#endif
}

// Why a variant that is compiled in is not used; empty if it is.
std::string reason(const Variant& variant) {
  if (const uint32_t missing = variant.needs & ~detected_features()) return "the CPU lacks " + feature_names(missing);
  if (variant.needs & ~cpu_features()) return "TESSERA_MAX_ISA forbids it";
  return "";
}

nb::dict variants() {
  nb::dict all;
  for (int32_t i = 0; i < tessera_num_variants(); ++i) {
    const char* const name = tessera_variant_name(i);
    nb::dict entry;
    entry["available"] = tessera_variant_available(i) != 0;
    entry["reason"] = reason(*find_variant(name));
    all[name] = entry;
  }
  return all;
}

nb::typed<nb::dict, nb::str, nb::any> facts() {
  const CacheSizes& caches = cache_sizes();
  nb::dict cache_bytes;
  cache_bytes["l1d"] = caches.l1d;
  cache_bytes["l2"] = caches.l2;
  cache_bytes["l3"] = caches.l3;
  nb::dict facts;
  facts["version"] = tessera_version();
  facts["abi_version"] = tessera_abi_version();
  facts["variants"] = variants();
  facts["features"] = feature_names(detected_features());
  facts["threads"] = tessera_get_num_threads();
  facts["cache_bytes"] = cache_bytes;
  facts["compiler"] = compiler();
  return facts;
}

void set_num_threads(nb::handle n) {
  const int32_t threads = int32_of({"set_num_threads", "n"}, n);
  if (const tessera_status status = tessera_set_num_threads(threads)) raise_status(status, "set_num_threads");
}

// Returns the name that was forced before; "" stands for none.
std::string force_variant(std::string name) {
  forced_variant().swap(name);
  return name;
}

double measure_ceiling(const std::string& kind, const std::string& variant, int32_t num_threads, double seconds) {
  tessera_ceiling_kind which = TESSERA_CEILING_F32_FMA;
  if (kind == "bf16_dot") {
    which = TESSERA_CEILING_BF16_DOT;
  } else if (kind == "stream") {
    which = TESSERA_CEILING_STREAM;
  } else if (kind != "f32_fma") {
    refuse(PyExc_ValueError, {"measure_ceiling", "kind"}, "is " + kind + "; expected f32_fma, bf16_dot or stream");
  }
  double value = 0;
  tessera_status status;
  {
    nb::gil_scoped_release unlocked;
    status = tessera_measure_ceiling(which, variant.c_str(), num_threads, seconds, &value);
  }
  if (status != TESSERA_OK) raise_status(status, "measure_ceiling");
  return value;
}

// `pieces`: addresses.
double measure_gather(const nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& pieces,
                      int64_t bytes, const std::string& variant, int32_t num_threads, double seconds) {
  double value = 0;
  tessera_status status;
  {
    nb::gil_scoped_release unlocked;
    status =
        tessera_measure_gather(reinterpret_cast<const void* const*>(pieces.data()), static_cast<int64_t>(pieces.size()),
                               bytes, variant.c_str(), num_threads, seconds, &value);
  }
  if (status != TESSERA_OK) raise_status(status, "measure_gather");
  return value;
}

// The memory of a new result as an object with __dlpack__, for producers whose from_dlpack makes the caller's own kind
// of array: NumPy's __dlpack__ cannot export bfloat16.
nb::object as_dlpack(nb::handle array) {
  const View view = view_of(array, {"as_dlpack", "array"}, "the dtype of a result", Access::kRead);
  const tessera_tensor& t = view.tensor;
  using Code = nb::dlpack::dtype_code;
  nb::dlpack::dtype dtype{static_cast<uint8_t>(Code::Float), 16, 1};
  if (t.dtype == TESSERA_BF16) dtype.code = static_cast<uint8_t>(Code::Bfloat);
  if (t.dtype == TESSERA_F32) dtype.bits = 32;
  if (t.dtype == TESSERA_I32) dtype = {static_cast<uint8_t>(Code::Int), 32, 1};
  if (t.dtype == TESSERA_I8) dtype = {static_cast<uint8_t>(Code::Int), 8, 1};
  size_t shape[TESSERA_MAX_DIMS];
  std::copy(t.shape, t.shape + t.ndim, shape);
  return nb::cast(nb::ndarray<nb::array_api>(t.data, static_cast<size_t>(t.ndim), shape, view.owner, t.stride, dtype));
}

}  // namespace

void bind_info(nb::module_& m) {
  m.attr("__version__") = tessera_version();
  m.def("facts", facts);
  m.def("set_num_threads", set_num_threads);
  m.def("get_num_threads", tessera_get_num_threads);
  m.def("force_variant", force_variant);
  m.def("measure_ceiling", measure_ceiling);
  m.def("measure_gather", measure_gather);
  m.def("as_dlpack", as_dlpack);
}

}  // namespace tessera::python
