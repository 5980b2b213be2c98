/* A recording as Chrome's trace format. See profile.h. Times are in us; begin and end are rounded to ns before the
 * difference is taken, so that events of a track nest exactly, as Perfetto wants it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/dtype.h"
#include "core/error.h"
#include "profile/write.h"

typedef struct Out {
  FILE *file;
  char *at, *end;
  char text[1 << 16];
} Out;

enum { LINE = 4096 }; /* the longest piece that is put without a check */

static void flush(Out *o) {
  fwrite(o->text, 1, (size_t)(o->at - o->text), o->file);
  o->at = o->text;
}

static inline void need(Out *o) {
  if (o->end - o->at < LINE)
    flush(o);
}

static inline void put(Out *o, const char *text) {
  size_t n = strlen(text);
  memcpy(o->at, text, n);
  o->at += n;
}

static inline void put_integer(Out *o, int64_t i) {
  char digits[24], *d = digits + sizeof digits;
  uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
  do
    *--d = (char)('0' + u % 10);
  while (u /= 10);
  if (i < 0)
    *--d = '-';
  size_t n = (size_t)(digits + sizeof digits - d);
  memcpy(o->at, d, n);
  o->at += n;
}

static inline void put_us(Out *o, int64_t ns) {
  put_integer(o, ns / 1000);
  int64_t rest = ns % 1000;
  *o->at++ = '.';
  *o->at++ = (char)('0' + rest / 100);
  *o->at++ = (char)('0' + rest / 10 % 10);
  *o->at++ = (char)('0' + rest % 10);
}

/* A string with its quotes; at most 1000 bytes of it. */
static void put_string(Out *o, const char *text) {
  static const char hex[] = "0123456789abcdef";
  need(o);
  *o->at++ = '"';
  size_t n = strlen(text), most = 1000 - 6;
  if (n > most)
    for (n = most; n && ((unsigned char)text[n] & 0xc0) == 0x80;) /* whole characters */
      n--;
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)text[i];
    if (c == '"' || c == '\\') {
      *o->at++ = '\\';
      *o->at++ = (char)c;
    } else if (c < 0x20 || c == 0x7f || c == '<') { /* "</script" in a page that contains it */
      put(o, "\\u00");
      *o->at++ = hex[c >> 4];
      *o->at++ = hex[c & 15];
    } else {
      *o->at++ = (char)c;
    }
    need(o);
  }
  *o->at++ = '"';
}

const char *moth_profile_category(int kind) {
  static const char *const names[] = {"cpu_op",     "backward",   "user_annotation", "module",
                                      "step",       "dataloader", "optimizer",       "compiled",
                                      "collective", "kernel",     "gpu_memcpy",      "gpu_memset"};
  return names[kind];
}

bool moth_profile_has_arrow(const MothProfileThread *t, const MothEvent *e) {
  return e->seq && (e->kind == MOTH_EVENT_NODE || e->parent < 0 ||
                    moth_profile_event(t, e->parent)->seq != e->seq);
}

const MothProfileThread *moth_profile_launcher(const MothProfile *p, const MothDeviceWork *w) {
  const MothProfileThread *t = w->thread >= 0 ? moth_profile_thread(p, w->thread) : NULL;
  return t && w->event < t->n ? t : NULL;
}

static void put_shapes(Out *o, const char *comma, const int64_t *s) {
  int64_t n = *s++;
  const int64_t *first = s;
  put(o, comma);
  put(o, "\"Input Dims\":[");
  for (int64_t i = 0; i < n; i++) {
    int64_t ndim = s[1];
    put(o, i ? ",[" : "[");
    for (int64_t d = 0; d < ndim; d++) {
      if (d)
        *o->at++ = ',';
      put_integer(o, s[2 + d]);
    }
    put(o, "]");
    s += 2 + ndim;
    need(o);
  }
  put(o, "],\"Input type\":[");
  s = first;
  for (int64_t i = 0; i < n; i++) {
    put(o, i ? ",\"" : "\"");
    put(o, moth_dtype_name((MothDType)s[0]));
    put(o, "\"");
    s += 2 + s[1];
    need(o);
  }
  put(o, "]");
}

static void put_call(Out *o, const MothProfile *p, const MothEvent *e) {
  char name[160];
  const char *text = moth_profile_name_at(p, e->name);
  if (e->kind == MOTH_EVENT_OP) {
    snprintf(name, sizeof name, "moth::%s", text);
    text = name;
  }
  put_string(o, text);
}

static void put_event(Out *o, const MothProfile *p, const MothProfileThread *t, int pid,
                      const MothEvent *e, int64_t begin, int64_t end) {
  bool node = e->kind == MOTH_EVENT_NODE;
  need(o);
  put(o, ",\n{\"ph\":\"X\",\"cat\":\"");
  put(o, moth_profile_category(e->kind));
  put(o, "\",\"pid\":");
  put_integer(o, pid);
  put(o, ",\"tid\":");
  put_integer(o, t->id);
  put(o, ",\"ts\":");
  put_us(o, begin);
  put(o, ",\"dur\":");
  put_us(o, end - begin);
  put(o, ",\"name\":");
  put_call(o, p, e);
  need(o);
  put(o, ",\"args\":{");
  const char *comma = "";
  if (e->bytes) {
    put(o, "\"bytes\":");
    put_integer(o, e->bytes);
    comma = ",";
  }
  if (e->seq) {
    put(o, comma);
    put(o, "\"Sequence number\":");
    put_integer(o, (int64_t)e->seq);
    comma = ",";
  }
  if (e->shapes >= 0) {
    put_shapes(o, comma, t->shapes + e->shapes);
    comma = ",";
  }
  if (e->place >= 0) {
    MothPlace at = moth_profile_place_at(p, e->place);
    char line[1100];
    snprintf(line, sizeof line, "%.1000s:%d", at.source, at.line);
    put(o, comma);
    put(o, "\"place\":");
    put_string(o, line);
  }
  need(o);
  put(o, "}}");
  if (moth_profile_has_arrow(t, e)) {
    need(o);
    put(o, node ? ",\n{\"ph\":\"f\",\"bp\":\"e\"" : ",\n{\"ph\":\"s\"");
    put(o, ",\"cat\":\"fwdbwd\",\"name\":\"fwdbwd\",\"id\":");
    put_integer(o, (int64_t)e->seq);
    put(o, ",\"pid\":");
    put_integer(o, pid);
    put(o, ",\"tid\":");
    put_integer(o, t->id);
    put(o, ",\"ts\":");
    put_us(o, begin);
    put(o, "}");
  }
}

static void put_named(Out *o, const char *what, int pid, int64_t tid, const char *name) {
  need(o);
  put(o, ",\n{\"ph\":\"M\",\"name\":\"");
  put(o, what);
  put(o, "\",\"pid\":");
  put_integer(o, pid);
  put(o, ",\"tid\":");
  put_integer(o, tid);
  put(o, ",\"args\":{\"name\":");
  put_string(o, name);
  put(o, "}}");
}

int64_t *moth_profile_ends(const MothProfile *p, const MothProfileThread *t) {
  int64_t *ends = malloc(sizeof *ends * (size_t)(t->n + 1)), last = moth_profile_duration(p);
  for (int64_t i = 0; ends && i < t->n; i++) {
    const MothEvent *e = moth_profile_event(t, i);
    int64_t most = e->parent >= 0 ? ends[e->parent] : last;
    ends[i] = e->end < e->begin || e->end > most ? most : e->end;
    if (ends[i] < e->begin)
      ends[i] = e->begin;
  }
  return ends;
}

/* The track of a device's stream: processes of traces are devices, their threads streams. */
static int process_of(const MothDeviceWork *w) {
  return 1000000000 + w->device; /* above all processes */
}

static void put_place(Out *o, int process, int64_t thread, int64_t ns) {
  put(o, ",\"pid\":");
  put_integer(o, process);
  put(o, ",\"tid\":");
  put_integer(o, thread);
  put(o, ",\"ts\":");
  put_us(o, ns);
}

static void put_work(Out *o, const MothProfile *p, const MothDeviceWork *w, int64_t number,
                     int stream, int64_t begin) {
  const MothProfileThread *t = moth_profile_launcher(p, w);
  const MothEvent *e = t ? moth_profile_event(t, w->event) : NULL;
  need(o);
  put(o, ",\n{\"ph\":\"X\",\"cat\":\"");
  put(o, moth_profile_category(MOTH_PROFILE_KERNELS + w->kind));
  put(o, "\"");
  put_place(o, process_of(w), stream, begin);
  put(o, ",\"dur\":");
  put_us(o, w->end > begin ? w->end - begin : 0);
  put(o, ",\"name\":");
  if (w->name >= 0)
    put_string(o, moth_profile_name_at(p, (uint32_t)w->name));
  else if (e)
    put_call(o, p, e);
  else
    put_string(o, "?");
  need(o);
  put(o, ",\"args\":{\"device\":");
  put_integer(o, w->device);
  put(o, ",\"stream\":");
  put_integer(o, stream);
  put(o, ",\"bytes\":");
  put_integer(o, w->bytes);
  put(o, "}}");
  if (!e)
    return;
  for (int k = 0; k < 2; k++) { /* an arrow from the call to what it launched */
    need(o);
    put(o, k ? ",\n{\"ph\":\"f\",\"bp\":\"e\"" : ",\n{\"ph\":\"s\"");
    put(o, ",\"cat\":\"ac2g\",\"name\":\"ac2g\",\"id\":");
    put_integer(o, number + 1);
    put_place(o, k ? process_of(w) : (int)getpid(), k ? stream : t->id, k ? begin : e->begin);
    put(o, "}");
  }
}

static void put_devices(Out *o, const MothProfile *p) {
  for (MothWorkWalk walk = {0}; moth_profile_next(p, &walk);) {
    const MothDeviceWork *w = walk.work;
    char name[64];
    if (walk.new_device) {
      snprintf(name, sizeof name, "cuda:%d", w->device);
      put_named(o, "process_name", process_of(w), 0, name);
    }
    if (walk.new_stream) {
      snprintf(name, sizeof name, "stream %d", walk.stream);
      put_named(o, "thread_name", process_of(w), walk.stream, name);
    }
    put_work(o, p, w, walk.at - 1, walk.stream, walk.begin);
  }
}

static MothStatus write_all(const MothProfile *p, Out *o) {
  int pid = (int)getpid();
  put(o, "{\"schemaVersion\":1,\"displayTimeUnit\":\"ns\",\"moth_version\":");
  put_string(o, moth_version());
  put(o, ",\"baseTimeNanoseconds\":");
  put_integer(o, moth_profile_began(p));
  put(o, ",\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":");
  put_integer(o, pid);
  put(o, ",\"args\":{\"labels\":\"CPU\"}}");
  put_named(o, "process_name", pid, pid, "moth");
  for (int k = 0; k < moth_profile_threads(p); k++) {
    const MothProfileThread *t = moth_profile_thread(p, k);
    char name[64];
    snprintf(name, sizeof name, t->id == pid ? "main thread" : "thread %lld", (long long)t->id);
    put_named(o, "thread_name", pid, t->id, name);
    int64_t *ends = moth_profile_ends(p, t);
    if (!ends)
      return moth_fail(MOTH_ERR_MEMORY, "profiler: out of memory");
    for (int64_t i = 0; i < t->n; i++) {
      const MothEvent *e = moth_profile_event(t, i);
      put_event(o, p, t, pid, e, e->begin, ends[i]);
    }
    free(ends);
  }
  put_devices(o, p);
  need(o);
  put(o, "\n]}\n");
  flush(o);
  return MOTH_OK;
}

MothStatus moth_profile_write_chrome(const MothProfile *p, const char *path) {
  Out *o = malloc(sizeof *o);
  if (!o)
    return moth_fail(MOTH_ERR_MEMORY, "profiler: out of memory");
  o->at = o->text;
  o->end = o->text + sizeof o->text;
  o->file = fopen(path, "w");
  MothStatus s = o->file ? write_all(p, o) : MOTH_OK;
  bool bad = !o->file || ferror(o->file);
  if (o->file && fclose(o->file) != 0)
    bad = true;
  if (bad && s == MOTH_OK)
    s = moth_fail(MOTH_ERR_IO, "profiler: '%s' cannot be written: %s", path, strerror(errno));
  free(o);
  return s;
}
