/* Calls of code that was generated for a model: fused.h. */
#include "edge/fused.h"

#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "edge/model.h"

enum { MOST_TEMPORARIES = 64 };

static void launch(const MothModel *m, const MothEdgeCall *c, void *const *temporaries) {
  const MothFusedKernel *k = c->fused;
  for (uint32_t l = 0; l < k->nlaunches; l++) {
    memcpy(c->slots, k->launches[l].slots, sizeof *c->slots * k->nslots);
    for (uint32_t i = 0; i < k->nresults + k->noperands + k->ntemporaries; i++) {
      const void *p = i < k->nresults ? m->values[c->result + i].t.data
                      : i < k->nresults + k->noperands
                          ? m->values[c->args[i - k->nresults].value].t.data
                          : temporaries[i - k->nresults - k->noperands];
      if (k->at[i] >= 0)
        c->slots[k->at[i]] = (uint64_t)(uintptr_t)p;
    }
    moth_parallel_for(k->launches[l].n, k->launches[l].grain, m->fused->run, c->slots);
  }
}

MothStatus moth_edge_run_fused(const MothModel *m, const MothEdgeCall *c) {
  void *temporaries[MOST_TEMPORARIES];
  const MothFusedKernel *k = c->fused;
  uint32_t n = 0;
  while (n < k->ntemporaries && n < MOST_TEMPORARIES &&
         (temporaries[n] = moth_alloc((size_t)k->temporaries[n])) != NULL)
    n++;
  bool ok = n == k->ntemporaries;
  if (ok)
    launch(m, c, temporaries);
  while (n-- > 0)
    moth_free(temporaries[n], (size_t)k->temporaries[n]);
  return ok ? MOTH_OK
            : moth_fail(MOTH_ERR_MEMORY, "no memory for the temporaries of generated code");
}
