/* Memory of a thread: kept out of the static TLS, which is scarce in a library that is opened at run
 * time, and freed when the thread ends. */
#ifndef MOTH_CORE_THREAD_H
#define MOTH_CORE_THREAD_H
#include "moth.h"

/* n zero bytes that live as long as this thread; NULL without memory. */
MOTH_API void *moth_thread_calloc(size_t n);
#endif
