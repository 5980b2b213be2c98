/* Memory that the ranks of one host share: rings of bytes by which the data of collectives travels there, with one copy in
 * and one out, where sockets need the kernel for both; and what each rank has called last, which the others read when it
 * has died.
 *
 * Each rank makes a file without a name; the others map it by way of /proc. It has a ring for each other rank, which its
 * owner writes and that rank reads. Whoever finds nothing to do sleeps on a word of its own file, and is woken by those
 * who move data. Bytes travel in lines of 64: what is written at once begins at a line, and so is aligned. */
#ifndef MOTH_COMM_SHARED_H
#define MOTH_COMM_SHARED_H
#include "comm/comm.h"

typedef struct MothShared MothShared;

/* NULL: it is not possible here. *fd and *nonce are what others open it by; the file stays open until
 * moth_shared_settle. */
MothShared *moth_shared_new(int rank, int size, int *fd, uint64_t *nonce);
/* Maps that of another rank, which is process pid. False: it is on another host, in another container, or forbids it. */
bool moth_shared_open(MothShared *s, int rank, int pid, int fd, uint64_t nonce);
void moth_shared_settle(MothShared *s);
void moth_shared_free(MothShared *s);

/* Puts bytes into the ring to a rank: how many; 0: it is full; -1: the memory of the two is damaged. What is less than n is a number of whole lines. The rest of
 * the last line is skipped. */
int64_t moth_shared_write(MothShared *s, int rank, const void *data, int64_t n);
/* The bytes that lie in the ring from a rank, and how many: whole lines, or at least all that was written. NULL: none;
 * *n is -1 then if the memory of the two is damaged, else 0. */
const char *moth_shared_read(MothShared *s, int rank, int64_t *n);
/* Takes n of them out, and the rest of the last line. */
void moth_shared_take(MothShared *s, int rank, int64_t n);

/* To sleep: announce it, look once more whether there is something to do, sleep; then, or if there is, rise. */
void moth_shared_drowse(MothShared *s);
void moth_shared_sleep(MothShared *s, int milliseconds);
void moth_shared_rise(MothShared *s);
/* Wakes this rank; any thread. Does nothing with NULL. */
void moth_shared_wake(MothShared *s);

/* What a rank has called last. */
MothCommLast *moth_shared_last(MothShared *s, int rank);
#endif
