// tessera._core: the C ABI for Python. The package's public functions, with their defaults and documentation, are in
// python/tessera; what is here takes every argument by position.
#include "python/module.h"

NB_MODULE(_core, m) {
  tessera::python::bind_operators(m);
  tessera::python::bind_msa_attention(m);
  tessera::python::bind_msa_index(m);
  tessera::python::bind_qsa_index(m);
  tessera::python::bind_qsa_attention(m);
  tessera::python::bind_kv_cache(m);
  tessera::python::bind_qsa_keys(m);
  tessera::python::bind_parallel(m);
  tessera::python::bind_info(m);
}
