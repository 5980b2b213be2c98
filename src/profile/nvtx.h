/* Marks for NVIDIA's tools (Nsight, ncu): ranges and points with a text, by the protocol of NVTX 3.
 *
 * A tool that wants marks names its library in NVTX_INJECTION64_PATH; it is opened at the first mark. Without a tool a
 * mark costs a load and a branch. No library of CUDA's is needed, and none of its devices. */
#ifndef MOTH_PROFILE_NVTX_H
#define MOTH_PROFILE_NVTX_H
#include "moth.h"

/* Ranges belong to the thread that pushes them. False: no tool is attached, and nothing was done. */
MOTH_API bool moth_nvtx_push(const char *text);
MOTH_API bool moth_nvtx_pop(void);
MOTH_API bool moth_nvtx_mark(const char *text);
/* Why marks do nothing; NULL: a tool is attached. */
MOTH_API const char *moth_nvtx_why(void);
#endif
