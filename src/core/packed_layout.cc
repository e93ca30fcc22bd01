#include "core/packed_layout.h"

#include <string>

#include "core/check.h"

namespace tessera {
namespace {

int64_t elements_of(const tessera_tensor& t) { return 4 / dtype_size(t.dtype); }
int64_t units(int64_t n, int64_t e) { return n / e + (n % e != 0 ? 1 : 0); }

void check_units(const char* name, const tessera_tensor& t, Checker* c) {
  const int64_t e = elements_of(t);
  c->axis(name, t, 4, e, "e, the elements in 4 bytes");
  c->unit_feature(name, t);
  c->require(!c->ok() || is_empty(t) || t.shape[3] == 1 || t.stride[3] == e, [&] {
    return invalid(std::string(name) + " has stride " + std::to_string(t.stride[3]) +
                   " in axis 3; its last two axes are dense (stride " + std::to_string(e) + ")");
  });
}

}  // namespace

void check_packed_keys(const char* name, const tessera_tensor& k, int64_t dim, const char* dim_text, Checker* c) {
  c->axis(name, k, 2, units(dim, elements_of(k)), dim_text);
  check_units(name, k, c);
}

void check_packed_values(const char* name, const tessera_tensor& v, int64_t page_size, const char* page_size_text,
                         Checker* c) {
  c->axis(name, v, 2, units(page_size, elements_of(v)), page_size_text);
  check_units(name, v, c);
}

}  // namespace tessera
