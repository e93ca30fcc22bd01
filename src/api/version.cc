#include "api/call.h"
#include "tessera/tessera.h"

#define TESSERA_TEXT_(x) #x
#define TESSERA_TEXT(x) TESSERA_TEXT_(x)

#define TESSERA_VERSION \
  TESSERA_TEXT(TESSERA_VERSION_MAJOR) "." TESSERA_TEXT(TESSERA_VERSION_MINOR) "." TESSERA_TEXT(TESSERA_VERSION_PATCH)

const char* tessera_version(void) { return TESSERA_VERSION; }

int tessera_abi_version(void) { return TESSERA_ABI_VERSION; }

const char* tessera_last_error(void) { return tessera::last_error_message(); }
