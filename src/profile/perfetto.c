/* A recording as Perfetto's own trace (.pftrace): about a fifth of Chrome's JSON, and read faster. See profile.h.
 *
 * The file is a list of packets in protobuf's wire format. Each track is a sequence of packets: a first one names the
 * track and the default for events; then an event is a packet for its begin and one for its end, with numbers for names
 * and places, which are told where they are first used. Source: protos/perfetto/trace of github.com/google/perfetto,
 * whose field numbers these are. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "device/cuda.h"
#include "profile/write.h"

enum { /* fields of TracePacket */
       PACKET = 1,
       TIMESTAMP = 8,
       SEQUENCE = 10,
       EVENT = 11,
       INTERNED = 12,
       FLAGS = 13,
       DEFAULTS = 59,
       TRACK = 60
};
enum { CLEARED = 1, NEEDS_STATE = 2 }; /* flags */
enum {
  CATEGORY_IID = 3,
  TYPE = 9,
  NAME_IID = 10,
  UUID = 11, /* fields of TrackEvent */
  PLACE_IID = 34,
  FLOWS = 47,
  LAST_FLOWS = 48
};
enum { BEGIN = 1, END = 2 };                    /* types */
enum { CATEGORIES = 1, NAMES = 2, PLACES = 4 }; /* fields of InternedData */
enum { MOST = 4096 };                           /* bytes of a packet */
enum { PROCESS_UUID = 1, FIRST_UUID = 2, KINDS = 12 };

typedef struct Bytes {
  uint8_t *at, data[MOST];
} Bytes;

typedef struct Out {
  FILE *file;
  Bytes packet, part, item; /* a message within a message within a packet */
  uint32_t sequence;
  uint8_t *names, *places; /* told in this sequence; by number */
  bool kinds[KINDS];
} Out;

static void varint(Bytes *b, uint64_t n) {
  for (; n >= 128; n >>= 7)
    *b->at++ = (uint8_t)(n | 128);
  *b->at++ = (uint8_t)n;
}

static void number(Bytes *b, int field, uint64_t n) {
  varint(b, (uint64_t)field << 3);
  varint(b, n);
}

static void fixed(Bytes *b, int field, uint64_t n) {
  varint(b, (uint64_t)field << 3 | 1);
  for (int i = 0; i < 8; i++)
    *b->at++ = (uint8_t)(n >> 8 * i);
}

static void bytes(Bytes *b, int field, const void *data, size_t n) {
  varint(b, (uint64_t)field << 3 | 2);
  varint(b, n);
  memcpy(b->at, data, n);
  b->at += n;
}

/* At most 1000 bytes of a text, none in the middle of a character. */
static void text(Bytes *b, int field, const char *s) {
  size_t n = strlen(s);
  if (n > 1000)
    for (n = 1000; n > 0 && ((uint8_t)s[n] & 0xc0) == 0x80; n--)
      ;
  bytes(b, field, s, n);
}

static void put(Bytes *to, int field, const Bytes *from) {
  bytes(to, field, from->data, (size_t)(from->at - from->data));
}

static void empty(Bytes *b) {
  b->at = b->data;
}

static void begin_packet(Out *o, int64_t ns) {
  empty(&o->packet);
  if (ns >= 0)
    number(&o->packet, TIMESTAMP, (uint64_t)ns);
  number(&o->packet, SEQUENCE, o->sequence);
}

static void end_packet(Out *o) {
  uint8_t head[16];
  Bytes h;
  empty(&h);
  varint(&h, PACKET << 3 | 2);
  varint(&h, (uint64_t)(o->packet.at - o->packet.data));
  memcpy(head, h.data, sizeof head);
  fwrite(head, 1, (size_t)(h.at - h.data), o->file);
  fwrite(o->packet.data, 1, (size_t)(o->packet.at - o->packet.data), o->file);
}

/* A track of the process, as a new sequence; tid -1: none of the system's threads. */
static void begin_track(Out *o, const MothProfile *p, int64_t tid, const char *name) {
  uint64_t uuid = FIRST_UUID + o->sequence++;
  memset(o->names, 0, moth_profile_names(p));
  memset(o->places, 0, (size_t)moth_profile_places(p));
  memset(o->kinds, 0, sizeof o->kinds);
  begin_packet(o, -1);
  number(&o->packet, FLAGS, CLEARED);
  empty(&o->part);
  number(&o->part, 1, uuid);
  number(&o->part, 5, PROCESS_UUID);
  text(&o->part, 2, name);
  if (tid >= 0) {
    empty(&o->item);
    number(&o->item, 1, (uint64_t)getpid());
    number(&o->item, 2, (uint64_t)tid);
    text(&o->item, 5, name);
    put(&o->part, 4, &o->item);
  }
  put(&o->packet, TRACK, &o->part);
  empty(&o->item);
  number(&o->item, UUID, uuid);
  empty(&o->part);
  put(&o->part, 11, &o->item);
  put(&o->packet, DEFAULTS, &o->part);
  end_packet(o);
}

/* { iid, name } in InternedData. */
static void tell(Out *o, int field, uint64_t iid, const char *s) {
  empty(&o->item);
  number(&o->item, 1, iid);
  text(&o->item, 2, s);
  put(&o->part, field, &o->item);
}

/* An event's begin. op: its name is that of an op. */
static void begin_event(Out *o, const MothProfile *p, int64_t ns, int kind, bool op, uint32_t name,
                        int32_t place, int flow_field, uint64_t flow) {
  begin_packet(o, ns);
  number(&o->packet, FLAGS, NEEDS_STATE);
  empty(&o->part);
  if (!o->kinds[kind])
    tell(o, CATEGORIES, (uint64_t)kind + 1, moth_profile_category(kind));
  uint8_t bit = op ? 2 : 1;
  if (!(o->names[name] & bit)) {
    char full[160];
    const char *s = moth_profile_name_at(p, name);
    if (op)
      snprintf(full, sizeof full, "moth::%s", s);
    tell(o, NAMES, 2 * (uint64_t)name + bit, op ? full : s);
  }
  if (place >= 0 && !o->places[place]) {
    MothPlace at = moth_profile_place_at(p, place);
    empty(&o->item);
    number(&o->item, 1, (uint64_t)place + 1);
    text(&o->item, 2, at.source);
    number(&o->item, 4, (uint64_t)at.line);
    put(&o->part, PLACES, &o->item);
    o->places[place] = 1;
  }
  o->kinds[kind] = true;
  o->names[name] |= bit;
  if (o->part.at > o->part.data)
    put(&o->packet, INTERNED, &o->part);
  empty(&o->part);
  number(&o->part, TYPE, BEGIN);
  number(&o->part, CATEGORY_IID, (uint64_t)kind + 1);
  number(&o->part, NAME_IID, 2 * (uint64_t)name + bit);
  if (place >= 0)
    number(&o->part, PLACE_IID, (uint64_t)place + 1);
  if (flow_field)
    fixed(&o->part, flow_field, flow);
  put(&o->packet, EVENT, &o->part);
  end_packet(o);
}

static void end_event(Out *o, int64_t ns) {
  begin_packet(o, ns);
  empty(&o->part);
  number(&o->part, TYPE, END);
  put(&o->packet, EVENT, &o->part);
  end_packet(o);
}

static MothStatus write_thread(Out *o, const MothProfile *p, const MothProfileThread *t) {
  char name[64];
  snprintf(name, sizeof name, t->id == getpid() ? "main thread" : "thread %lld", (long long)t->id);
  begin_track(o, p, t->id, name);
  int64_t *ends = moth_profile_ends(p, t);
  if (!ends)
    return moth_fail(MOTH_ERR_MEMORY, "profiler: out of memory");
  int32_t open = -1;
  for (int64_t i = 0; i < t->n; i++) {
    const MothEvent *e = moth_profile_event(t, i);
    for (; open != e->parent; open = moth_profile_event(t, open)->parent)
      end_event(o, ends[open]);
    int flow = !moth_profile_has_arrow(t, e) ? 0 : e->kind == MOTH_EVENT_NODE ? LAST_FLOWS : FLOWS;
    begin_event(o, p, e->begin, e->kind, e->kind == MOTH_EVENT_OP, e->name, e->place, flow, e->seq);
    open = (int32_t)i;
  }
  for (; open >= 0; open = moth_profile_event(t, open)->parent)
    end_event(o, ends[open]);
  free(ends);
  return MOTH_OK;
}

static void write_devices(Out *o, const MothProfile *p) {
  for (MothWorkWalk walk = {0}; moth_profile_next(p, &walk);) {
    const MothDeviceWork *w = walk.work;
    if (walk.new_stream) {
      char name[64];
      snprintf(name, sizeof name, "cuda:%d stream %d", w->device, walk.stream);
      begin_track(o, p, -1, name);
    }
    const MothProfileThread *t = moth_profile_launcher(p, w);
    const MothEvent *e = t ? moth_profile_event(t, w->event) : NULL;
    if (w->name < 0 && !e)
      continue;
    bool op = w->name < 0 && e->kind == MOTH_EVENT_OP;
    begin_event(o, p, walk.begin, MOTH_PROFILE_KERNELS + w->kind, op,
                w->name >= 0 ? (uint32_t)w->name : e->name, -1, 0, 0);
    end_event(o, walk.end);
  }
}

static MothStatus write_all(const MothProfile *p, Out *o) {
  begin_packet(o, -1);
  empty(&o->part);
  number(&o->part, 1, PROCESS_UUID);
  empty(&o->item);
  number(&o->item, 1, (uint64_t)getpid());
  text(&o->item, 6, "moth");
  put(&o->part, 3, &o->item);
  put(&o->packet, TRACK, &o->part);
  end_packet(o);
  for (int k = 0; k < moth_profile_threads(p); k++)
    MOTH_TRY(write_thread(o, p, moth_profile_thread(p, k)));
  write_devices(o, p);
  return MOTH_OK;
}

MothStatus moth_profile_write_perfetto(const MothProfile *p, const char *path) {
  Out *o = calloc(1, sizeof *o);
  if (o) {
    o->names = calloc(1, moth_profile_names(p) + 1);
    o->places = calloc(1, (size_t)moth_profile_places(p) + 1);
    o->sequence = 1;
  }
  MothStatus s = MOTH_OK;
  if (!o || !o->names || !o->places) {
    s = moth_fail(MOTH_ERR_MEMORY, "profiler: out of memory");
  } else {
    o->file = fopen(path, "wb");
    if (o->file)
      s = write_all(p, o);
    bool bad = !o->file || ferror(o->file);
    if (o->file && fclose(o->file) != 0)
      bad = true;
    if (bad && s == MOTH_OK)
      s = moth_fail(MOTH_ERR_IO, "profiler: '%s' cannot be written: %s", path, strerror(errno));
  }
  if (o) {
    free(o->names);
    free(o->places);
  }
  free(o);
  return s;
}
