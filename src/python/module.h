// The parts of the module tessera._core.
#ifndef TESSERA_PYTHON_MODULE_H_
#define TESSERA_PYTHON_MODULE_H_

#include <nanobind/nanobind.h>

namespace tessera::python {

void bind_operators(nanobind::module_& m);
void bind_msa_attention(nanobind::module_& m);
void bind_msa_index(nanobind::module_& m);
void bind_qsa_index(nanobind::module_& m);
void bind_qsa_attention(nanobind::module_& m);
void bind_kv_cache(nanobind::module_& m);
void bind_qsa_keys(nanobind::module_& m);
void bind_parallel(nanobind::module_& m);
void bind_info(nanobind::module_& m);

template <class>
auto anything() {
  return nanobind::arg().none();
}

// Every argument may be None as far as nanobind is concerned: what is wrong with one is said by Call, by name. For type
// checkers a result may be anything: the package's own functions say what it is.
template <class... Arguments>
void bind(nanobind::module_& m, const char* name, nanobind::object (*function)(Arguments...)) {
  const auto call = [function](Arguments... arguments) -> nanobind::any {
    return nanobind::steal<nanobind::any>(function(arguments...).release());
  };
  m.def(name, call, anything<Arguments>()...);
}

}  // namespace tessera::python

#endif  // TESSERA_PYTHON_MODULE_H_
