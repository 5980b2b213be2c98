/* MOTH_LOGS=topic,+topic,-topic,all: messages for debugging, on stderr, each line after "[rank N]" where RANK is set. A
 * topic is a word such as `dispatch`; with + it says more, with - nothing (all,-dispatch). log.c lists them. */
#ifndef MOTH_CORE_LOG_H
#define MOTH_CORE_LOG_H
#include "moth.h"

MOTH_API bool moth_log_on(const char *topic);
MOTH_API int moth_log_level(const char *topic); /* 0: off, 1: on, 2: in detail (+topic) */
MOTH_API void moth_log_set(const char *topics); /* as MOTH_LOGS; NULL or "": none */
MOTH_API void moth_log_write(const char *topic, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
#endif
