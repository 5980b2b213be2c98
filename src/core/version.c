#include "moth.h"

const char *moth_version(void) {
  return MOTH_VERSION;
}
