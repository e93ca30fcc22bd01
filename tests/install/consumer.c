// A program of someone else's that uses an installed tessera.
#include <stdio.h>
#include <tessera/tessera.h>

int main(void) {
  printf("tessera %s, ABI %d, best variant:", tessera_version(), tessera_abi_version());
  for (int i = 0; i < tessera_num_variants(); ++i) {
    if (!tessera_variant_available(i)) continue;
    printf(" %s\n", tessera_variant_name(i));
    return tessera_abi_version() != TESSERA_ABI_VERSION;
  }
  return 1;
}
