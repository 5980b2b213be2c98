/* MOTH_* variables of the environment: one reader for all, which reports an invalid value on stderr (once, when
 * it is first read) instead of silently using another. An empty one counts as not set.
 * docs/environment.md lists them. */
#ifndef MOTH_CORE_ENVIRONMENT_H
#define MOTH_CORE_ENVIRONMENT_H
#include "moth.h"

/* NULL: not set. */
MOTH_API const char *moth_env_text(const char *name);
/* An integer from low to high, or `otherwise`. */
MOTH_API int64_t moth_env_integer(const char *name, int64_t low, int64_t high, int64_t otherwise);
/* 1 or 0, or `otherwise`. */
MOTH_API bool moth_env_flag(const char *name, bool otherwise);
/* The index in `words`, which end in NULL; -1: not set, or none of them. */
MOTH_API int moth_env_choice(const char *name, const char *const *words);
/* "[moth] warning: NAME=value: expected ...; using ...": for checks that only the caller can do. */
MOTH_API void moth_env_complain(const char *name, const char *expected, const char *used);
/* Bytes of addresses that the process may still take (ulimit -v and -d); INT64_MAX: as many as it likes. */
MOTH_API int64_t moth_addresses_left(void);
#endif
