/* See nvtx.h. The tool's library has InitializeInjectionNvtx2(get_table): it asks for the table of callbacks, that for
 * the functions of a module, and writes its own functions to the places in that list. Source: NVTX 3's headers
 * (nvtxDetail/nvtxInit.h, nvtxTypes.h), whose names and numbers these are. */
#include "profile/nvtx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*Function)(void);

enum { CALLBACKS = 1, VERSION_INFO = 3 }; /* numbers of tables */
enum { CORE = 1, CORE2 = 5, MODULES = 7 };
enum {
  MARK_A = 2,
  PUSH_A = 9,
  POP = 11,
  FUNCTIONS = 32
}; /* of CORE; FUNCTIONS: of any module, at most */

static int (*push)(const char *);
static int (*pop)(void);
static void (*mark)(const char *);
static Function unused[FUNCTIONS]; /* what a tool would like of modules that moth does not call */
static Function *places[MODULES][FUNCTIONS];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char problem[512];

/* How many functions a module has, its first number being 0 for none. */
static const unsigned sizes[MODULES] = {0, 16, 9, 15, 7, 16, 7};

static int module_functions(int module, Function ***table, unsigned *size) {
  if (module < CORE || module >= MODULES)
    return 0;
  for (int i = 0; i < FUNCTIONS; i++)
    places[module][i] = &unused[i];
  if (module == CORE) {
    places[module][MARK_A] = (Function *)(void *)&mark;
    places[module][PUSH_A] = (Function *)(void *)&push;
    places[module][POP] = (Function *)(void *)&pop;
  }
  if (table)
    *table = places[module];
  if (size)
    *size = sizes[module];
  return 1;
}

static void tool_version(uint32_t version) {
  (void)version;
}

static const void *get_table(uint32_t table) {
  static const struct {
    size_t size;
    int (*functions)(int module, Function ***table, unsigned *size);
  } callbacks = {sizeof callbacks, module_functions};
  static const struct {
    size_t size;
    uint32_t version, reserved;
    void (*tool)(uint32_t version);
  } info = {sizeof info, 3, 0, tool_version};
  return table == CALLBACKS ? (const void *)&callbacks : table == VERSION_INFO ? &info : NULL;
}

static void open_tool(void) {
  const char *path = getenv("NVTX_INJECTION64_PATH");
  if (!path || !*path) {
    snprintf(
        problem, sizeof problem,
        "NVTX: no tool asks for marks (NVTX_INJECTION64_PATH is not set; nsys and ncu set it)");
    return;
  }
  void *lib = dlopen(path, RTLD_LAZY);
  if (!lib) {
    snprintf(problem, sizeof problem, "NVTX: %.480s", dlerror());
    return;
  }
  int (*attach)(const void *(*get_table)(uint32_t));
  *(void **)&attach = dlsym(lib, "InitializeInjectionNvtx2");
  if (!attach || !attach(get_table) || !push || !pop) {
    push = NULL;
    pop = NULL;
    mark = NULL;
    snprintf(problem, sizeof problem, "NVTX: the library of NVTX_INJECTION64_PATH, %.400s, %s",
             path, attach ? "takes no marks" : "lacks InitializeInjectionNvtx2");
  }
}

static bool attached(void) {
  pthread_once(&once, open_tool);
  return push != NULL;
}

bool moth_nvtx_push(const char *text) {
  return attached() && (push(text), true);
}

bool moth_nvtx_pop(void) {
  return attached() && (pop(), true);
}

bool moth_nvtx_mark(const char *text) {
  if (!attached() || !mark)
    return false;
  mark(text);
  return true;
}

const char *moth_nvtx_why(void) {
  return attached() ? NULL : problem;
}
