/* Sockets for the store and the tcp engine: non-blocking TCP with deadlines. Functions return -1 and set errno; no
 * message is set. Waits of a thread with an interrupt flag (core/parallel.h) end with EINTR when it is set. */
#ifndef MOTH_COMM_WIRE_H
#define MOTH_COMM_WIRE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

double moth_wire_now(void); /* seconds, monotonic */

/* A listening socket on an address of this machine (NULL: all); port 0: a free one. */
int moth_wire_listen(const char *host, int port, int *bound);
/* A connected socket. Retries until the deadline while nobody listens there. */
int moth_wire_connect(const char *host, int port, double deadline);
/* Makes fd non-blocking, closed in children, without delay of small messages. */
int moth_wire_prepare(int fd);
/* The address of this end of a connected socket. */
const char *moth_wire_address(int fd, char *text, size_t n);
/* Whether an address is one that only this machine reaches: 127.0.0.0/8, ::1, and the first as IPv6. */
struct sockaddr;
bool moth_wire_is_loopback(const struct sockaddr *a);
/* Writes or reads n bytes. errno: ETIMEDOUT, EPIPE at the end of the other side's data, EINTR, others. */
int moth_wire_write(int fd, const void *data, size_t n, double deadline);
int moth_wire_read(int fd, void *data, size_t n, double deadline);
/* Milliseconds for poll until the deadline, at most `most`. */
int moth_wire_left(double deadline, int most);
/* A pair of ends, [0] to be polled and drained, [1] to be rung; -1 on error. */
int moth_wire_bell(int bell[2]);
void moth_wire_ring(const int bell[2]);
void moth_wire_hush(const int bell[2]);

/* Whether both texts are equal, in a time that tells nothing of where they differ. */
bool moth_wire_same(const char *a, const char *b);
#endif
