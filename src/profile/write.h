/* What the writers of traces (chrome.c, perfetto.c) share. */
#ifndef MOTH_PROFILE_WRITE_H
#define MOTH_PROFILE_WRITE_H
#include "profile/profile.h"

/* The category of a MothEventKind; of a MothCudaWorkKind: MOTH_PROFILE_KERNELS + kind. */
enum { MOTH_PROFILE_KERNELS = MOTH_EVENT_COLLECTIVE + 1 };
const char *moth_profile_category(int kind);
/* The ends of a track's events as they are written: open ones end with the recording, none ends behind its parent. The
 * caller frees; NULL: no memory. */
int64_t *moth_profile_ends(const MothProfile *p, const MothProfileThread *t);
/* Whether there is an arrow between the event and the node of the same `seq`: of a composite and its parts, the outermost
 * call has it. */
bool moth_profile_has_arrow(const MothProfileThread *t, const MothEvent *e);
/* The thread of the call that launched w; NULL: not known. */
const MothProfileThread *moth_profile_launcher(const MothProfile *p, const MothDeviceWork *w);

static inline const MothEvent *moth_profile_event(const MothProfileThread *t, int64_t i) {
  return &t->chunks[i / MOTH_PROFILE_CHUNK][i % MOTH_PROFILE_CHUNK];
}
#endif
