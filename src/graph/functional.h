/* Calls that write to tensors, as values: each call is noted in a graph as one that makes new ones.
 *
 * Calls run on fakes, which share storages as the tensors do that they stand for. A value is what a fake's geometry
 * shows of its storage after a number of writes: (storage, geometry, version). A write makes a new value of the whole
 * storage; a view made before is, when it is next read, a view of that. */
#ifndef MOTH_GRAPH_FUNCTIONAL_H
#define MOTH_GRAPH_FUNCTIONAL_H
#include "graph/graph.h"

typedef struct MothFunctionalValue {
  MothTensor *t; /* retained: its geometry, and its storage stays */
  int64_t version;
  MothGraphRef ref;
} MothFunctionalValue;

/* The values of a storage. */
typedef struct MothFunctionalStore {
  MothStorage *storage;
  MothFunctionalValue root;    /* the whole of it, always of the present version */
  MothFunctionalValue *others; /* views */
  uint32_t n, cap;
  int32_t input;   /* which input's; -1: made by a call */
  bool derivable;  /* an input that requires a gradient: it may be written to unrecorded only */
  bool gaps;       /* the whole has elements that are not the input's */
  bool reached;    /* as_strided made a view: it may show these */
  int64_t version; /* how often it was written to */
} MothFunctionalStore;

typedef struct MothFunctional {
  MothGraph *graph;
  MothFunctionalStore *stores;
  uint32_t n, cap;
  uint32_t *table, table_size; /* by address, open addressing: index + 1 */
  MothTraceModes modes;        /* of the nodes to be made */
  const char *place;
  bool backward;
  bool recording; /* gradients of the call being run */
  bool offsets;   /* a call depends on where in its storage an input begins */
  MothGraphRef *refs;
  uint32_t refs_cap;
} MothFunctional;

/* t, a fake with a storage of its own, is input number i (-1: a gradient), whose value is ref. */
MothStatus moth_functional_input(MothFunctional *f, MothTensor *t, int32_t i, MothGraphRef ref);
/* The value of t now. */
MothStatus moth_functional_value(MothFunctional *f, MothTensor *t, MothGraphRef *ref);
/* The storage of t; NULL: not known. */
MothFunctionalStore *moth_functional_store(const MothFunctional *f, const MothTensor *t);
/* An interceptor below autograd, whose ctx is a MothFunctional: notes the call. */
MothStatus moth_functional_note(MothCall *c, void *ctx);
void moth_functional_free(MothFunctional *f);
#endif
