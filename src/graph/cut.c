/* Which values to save for backward: a smallest cut, by bytes, between what forward has and what backward wants.
 *
 * A value can be computed again in backward from the arguments of its call if the call is cheap: pointwise, or a view.
 * Products, attention, reductions, convolutions and calls that draw or write are not. The program may write to inputs and
 * outputs: they are saved only where the derivatives save them, and only views are computed from them again. Of equal
 * cuts the one nearest to backward is taken, where least is computed again. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "graph/joint.h"

typedef struct Edge {
  uint32_t to, next; /* next: in the list of its beginning, + 1 */
  int64_t left;      /* of its capacity; the edge i ^ 1 is its reverse */
} Edge;

typedef struct Net {
  Edge *edges;
  uint32_t *first, *level, *queue; /* by vertex; first: + 1 */
  uint32_t nedges, cap, n;
} Net;

static const int64_t WHOLE = INT64_MAX / 4;
enum { SOURCE, SINK, FIRST };

static bool add_edge(Net *net, uint32_t from, uint32_t to, int64_t capacity) {
  if (!moth_grow(&net->edges, &net->cap, (size_t)net->nedges + 2, sizeof *net->edges))
    return false;
  for (int i = 0; i < 2; i++) {
    uint32_t a = i ? to : from, b = i ? from : to;
    net->edges[net->nedges] = (Edge){b, net->first[a], i ? 0 : capacity};
    net->first[a] = ++net->nedges;
  }
  return true;
}

/* Levels from the sink backwards, over edges that have something left; whether the source is reached. */
static bool find_levels(Net *net) {
  uint32_t head = 0, tail = 0;
  memset(net->level, 0, sizeof *net->level * net->n);
  net->level[SINK] = 1;
  net->queue[tail++] = SINK;
  while (head < tail) {
    uint32_t v = net->queue[head++];
    for (uint32_t e = net->first[v]; e; e = net->edges[e - 1].next) {
      uint32_t u = net->edges[e - 1].to;
      if (!net->level[u] && net->edges[(e - 1) ^ 1].left > 0) {
        net->level[u] = net->level[v] + 1;
        net->queue[tail++] = u;
      }
    }
  }
  return net->level[SOURCE] != 0;
}

/* Pushes along one shortest way: the edges of it are in `queue`. */
static void push(Net *net) {
  uint32_t v = SOURCE, n = 0;
  int64_t amount = WHOLE;
  while (v != SINK) {
    uint32_t e = net->first[v];
    while (net->edges[e - 1].left <= 0 || net->level[net->edges[e - 1].to] + 1 != net->level[v])
      e = net->edges[e - 1].next;
    amount = net->edges[e - 1].left < amount ? net->edges[e - 1].left : amount;
    net->queue[n++] = e - 1;
    v = net->edges[e - 1].to;
  }
  while (n-- > 0) {
    net->edges[net->queue[n]].left -= amount;
    net->edges[net->queue[n] ^ 1].left += amount;
  }
}

static bool is_view(const MothGraphNode *n) {
  return n->kind == MOTH_NODE_CALL && n->op->memory == MOTH_MEMORY_VIEW;
}

/* Whether the program sees the value, or what it is a view of. */
static bool is_seen(const MothJoint *j, const MothGraphNode *n) {
  while (is_view(n))
    n = n->refs[0].node;
  bool seen = n->kind == MOTH_NODE_PLACEHOLDER;
  for (uint32_t i = 0; i < j->nroots; i++)
    seen = seen || j->roots[i].value.node == n;
  return seen;
}

static bool is_cheap(const MothJoint *j, const MothGraphNode *n) {
  bool cheap = n->kind == MOTH_NODE_CALL && n->variant == MOTH_FUNCTIONAL && !n->op->draws &&
               !moth_node_writes(n);
  if (!cheap || is_view(n))
    return cheap;
  cheap = n->op->kind == MOTH_KIND_POINTWISE;
  for (uint32_t i = 0; i < n->nrefs && cheap; i++)
    cheap = !is_seen(j, n->refs[i].node);
  return cheap;
}

/* A vertex for what comes in to value v, and one for what goes out: the edge between is cut where v is saved. */
static bool add_value(Net *net, const MothJoint *j, const MothGraphNode *n, uint8_t i,
                      const bool *wanted, bool ends) {
  if (n->kind == MOTH_NODE_GET_ATTR)
    return true; /* both graphs hold it */
  uint32_t in = FIRST + 2 * (n->slot + i), out = in + 1;
  const MothTraceMeta *m = &n->metas[i];
  bool cheap = is_cheap(j, n);
  bool may = !is_view(n) && (!is_seen(j, n) || wanted[n->slot + i]);
  int64_t bytes = m->numel * moth_dtype_size((MothDType)m->dtype) + 1;
  bool ok = add_edge(net, in, out, may ? bytes : WHOLE);
  if (!cheap)
    ok = ok && add_edge(net, SOURCE, in, WHOLE);
  for (uint32_t k = 0; k < n->nrefs && cheap; k++)
    ok =
        ok && add_edge(net, FIRST + 2 * (n->refs[k].node->slot + n->refs[k].result) + 1, in, WHOLE);
  return ok && (!ends || add_edge(net, out, SINK, WHOLE));
}

/* Whether backward itself uses the value, not only a call that could run again. */
static void mark_ends(const MothJoint *j, bool *ends) {
  for (const MothGraphNode *n = j->graph->first; n; n = n->next)
    for (uint32_t i = n->kind == MOTH_NODE_OUTPUT ? j->nroots : 0; i < n->nrefs; i++)
      if (!n->refs[i].node->backward && (n->backward || n->kind == MOTH_NODE_OUTPUT))
        ends[n->refs[i].node->slot + n->refs[i].result] = true;
}

MothStatus moth_joint_cut(const MothJoint *j, const bool *wanted, bool *kept) {
  Net net = {0};
  uint32_t nvalues = 0;
  for (const MothGraphNode *n = j->graph->first; n; n = n->next)
    nvalues += n->nresults;
  net.n = FIRST + 2 * nvalues;
  net.first = calloc(net.n, sizeof *net.first);
  net.level = calloc(net.n, sizeof *net.level);
  net.queue = calloc(net.n, sizeof *net.queue);
  bool *ends = calloc((size_t)nvalues + 1, sizeof *ends);
  bool ok = net.first && net.level && net.queue && ends;
  if (ok)
    mark_ends(j, ends);
  for (const MothGraphNode *n = j->graph->first; n && ok; n = n->next)
    for (uint8_t i = 0; i < n->nresults && !n->backward && ok; i++)
      ok = add_value(&net, j, n, i, wanted, ends[n->slot + i]);
  while (ok && find_levels(&net))
    push(&net);
  for (const MothGraphNode *n = j->graph->first; n && ok; n = n->next)
    for (uint8_t i = 0; i < n->nresults && !n->backward; i++) {
      uint32_t in = FIRST + 2 * (n->slot + i);
      kept[n->slot + i] = !net.level[in] && net.level[in + 1];
    }
  free(net.edges);
  free(net.first);
  free(net.level);
  free(net.queue);
  free(ends);
  return ok ? MOTH_OK : moth_no_memory(0);
}
