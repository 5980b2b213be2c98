/* The network interfaces of this machine: which of them data goes by, and addresses that only this machine reaches. */
#ifndef MOTH_COMM_INTERFACES_H
#define MOTH_COMM_INTERFACES_H
#include <stdbool.h>
#include <stddef.h>

#include "comm/store.h"

typedef struct {
  char name[16], address[64];
  bool is_loopback, is_six; /* six: IPv6 */
} MothInterface;

/* The addresses of interfaces that are up, at most `most` of them; without those of IPv6 that count on one link alone.
 * wanted: NULL: all; "eth,ib": interfaces whose names begin so, "=eth0": of exactly these names, "^docker,lo": all
 * others. */
MOTH_API size_t moth_interfaces(const char *wanted, MothInterface *out, size_t most);
/* Whether a name, which is no address and not localhost, stands for loopback addresses alone: Debian writes
 * "127.0.1.1 name" in /etc/hosts. */
MOTH_API bool moth_name_is_loopback(const char *host);
/* The address that data of a group goes by: of the interface that MOTH_SOCKET_IFNAME (or, with whole names,
 * GLOO_SOCKET_IFNAME) says, else of this end of the connection to the store. Errors: there is no such interface. */
MOTH_API MothStatus moth_data_address(MothStore *store, char *text, size_t n);
#endif
