/* See interfaces.h. */
#include "comm/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "comm/wire.h"
#include "core/environment.h"
#include "core/error.h"

enum { MOST = 64 };

/* Whether a name is in the list, which is as that of moth_interfaces. */
static bool is_wanted(const char *list, const char *name) {
  if (!list)
    return true;
  bool others = *list == '^', whole = *list == '=', named = false;
  list += others || whole;
  while (*list) {
    size_t n = strcspn(list, ",");
    named |= n > 0 && strncmp(list, name, n) == 0 && (!whole || name[n] == '\0');
    list += n + (list[n] == ',');
  }
  return named != others;
}

size_t moth_interfaces(const char *wanted, MothInterface *out, size_t most) {
  struct ifaddrs *list = NULL;
  size_t n = 0;
  if (getifaddrs(&list) < 0)
    return 0;
  for (const struct ifaddrs *i = list; i && n < most; i = i->ifa_next) {
    const struct sockaddr *a = i->ifa_addr;
    if (!a || !(i->ifa_flags & IFF_UP) || (a->sa_family != AF_INET && a->sa_family != AF_INET6) ||
        !is_wanted(wanted, i->ifa_name))
      continue;
    bool six = a->sa_family == AF_INET6;
    if (six && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr))
      continue;
    MothInterface *o = &out[n];
    *o = (MothInterface){.is_loopback = moth_wire_is_loopback(a), .is_six = six};
    snprintf(o->name, sizeof o->name, "%s", i->ifa_name);
    socklen_t length = six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    n += getnameinfo(a, length, o->address, sizeof o->address, NULL, 0, NI_NUMERICHOST) == 0;
  }
  freeifaddrs(list);
  return n;
}

bool moth_name_is_loopback(const char *host) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *list = NULL;
  if (strcmp(host, "localhost") == 0)
    return false;
  if (getaddrinfo(host, NULL, &hints, &list) == 0) {
    freeaddrinfo(list);
    return false;
  }
  hints.ai_flags = 0;
  if (getaddrinfo(host, NULL, &hints, &list) != 0)
    return false;
  bool all = true;
  for (const struct addrinfo *a = list; a; a = a->ai_next)
    all &= moth_wire_is_loopback(a->ai_addr);
  freeaddrinfo(list);
  return all;
}

MothStatus moth_data_address(MothStore *store, char *text, size_t n) {
  const char *wanted = moth_env_text("MOTH_SOCKET_IFNAME"), *gloo = getenv("GLOO_SOCKET_IFNAME");
  const char *variable = "MOTH_SOCKET_IFNAME";
  char whole[256];
  moth_store_address(store, text, n);
  if (!wanted && gloo && *gloo) {
    snprintf(whole, sizeof whole, "=%s", gloo);
    wanted = whole, variable = "GLOO_SOCKET_IFNAME";
  }
  if (!wanted)
    return MOTH_OK;
  MothInterface found[MOST];
  size_t k = moth_interfaces(wanted, found, MOST), best = k;
  bool six = strchr(text, ':') != NULL;
  for (size_t i = k;
       i-- > 0;) /* the first of the store's family, else the first; loopback where it is named */
    if ((*wanted != '^' || !found[i].is_loopback) &&
        (best == k || found[i].is_six == six || found[best].is_six != six))
      best = i;
  if (best == k) {
    char there[300] = "";
    size_t all = moth_interfaces(NULL, found, MOST), at = 0;
    for (size_t i = 0; i < all && at < sizeof there; i++)
      at += (size_t)snprintf(there + at, sizeof there - at, "%s%s (%s)", i ? ", " : "",
                             found[i].name, found[i].address);
    return moth_fail(MOTH_ERR_VALUE, "%s=%s names no interface that is up; there are %s", variable,
                     variable[0] == 'G' ? gloo : wanted, there);
  }
  snprintf(text, n, "%s", found[best].address);
  return MOTH_OK;
}
