/* MOTH_LOGS=topic,topic: messages for debugging, on stderr. Topics are words such as `dispatch`. */
#ifndef MOTH_CORE_LOG_H
#define MOTH_CORE_LOG_H
#include "moth.h"

MOTH_API bool moth_log_on(const char *topic);
MOTH_API void moth_log_set(const char *topics); /* as MOTH_LOGS; NULL or "": none */
MOTH_API void moth_log_write(const char *topic, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
#endif
