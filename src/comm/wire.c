/* See wire.h. */
#include "comm/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/parallel.h"

double moth_wire_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int moth_wire_left(double deadline, int most) {
  double ms = (deadline - moth_wire_now()) * 1e3;
  return ms <= 0 ? 0 : ms >= most ? most : (int)ms + 1;
}

int moth_wire_prepare(int fd) {
  int on = 1, flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
    return -1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return 0;
}

static struct addrinfo *find(const char *host, int port, bool passive) {
  char service[16];
  snprintf(service, sizeof service, "%d", port);
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  if (getaddrinfo(host, service, &hints, &list) != 0) {
    errno = EADDRNOTAVAIL;
    return NULL;
  }
  return list;
}

static void close_keeping_errno(int fd) {
  int error = errno;
  close(fd);
  errno = error;
}

int moth_wire_listen(const char *host, int port, int *bound) {
  struct addrinfo *list = find(host, port, true);
  int fd = -1, on = 1;
  for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
      continue;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, 1024) < 0 ||
        moth_wire_prepare(fd) < 0) {
      close_keeping_errno(fd);
      fd = -1;
    }
  }
  if (list)
    freeaddrinfo(list);
  if (fd < 0)
    return -1;
  struct sockaddr_storage own;
  socklen_t n = sizeof own;
  getsockname(fd, (struct sockaddr *)&own, &n);
  *bound = ntohs(own.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&own)->sin6_port
                                           : ((struct sockaddr_in *)&own)->sin_port);
  return fd;
}

/* Waits for events on fd: 0, or -1 with ETIMEDOUT or EINTR. */
static int await(int fd, short events, double deadline) {
  const volatile sig_atomic_t *flag = moth_interrupt_flag();
  for (;;) {
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, moth_wire_left(deadline, 50));
    if (n > 0)
      return 0;
    if (flag && *flag) {
      errno = EINTR;
      return -1;
    }
    if (n == 0 && moth_wire_now() >= deadline) {
      errno = ETIMEDOUT;
      return -1;
    }
    if (n < 0 && errno != EINTR)
      return -1;
  }
}

static int try_connect(const struct addrinfo *a, double deadline) {
  int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), error = 0;
  socklen_t n = sizeof error;
  if (fd < 0)
    return -1;
  if (moth_wire_prepare(fd) == 0) {
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
      return fd;
    if (errno == EINPROGRESS && await(fd, POLLOUT, deadline) == 0) {
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
      if (!error)
        return fd;
      errno = error;
    }
  }
  close_keeping_errno(fd);
  return -1;
}

int moth_wire_connect(const char *host, int port, double deadline) {
  int fd = -1;
  for (int nap = 1;; nap = nap < 50 ? 2 * nap : 50) {
    struct addrinfo *list = find(host, port, false);
    if (!list)
      return -1;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
      fd = try_connect(a, deadline);
    freeaddrinfo(list);
    if (fd >= 0)
      return fd;
    bool again = errno == ECONNREFUSED || errno == ECONNRESET || errno == EAGAIN;
    if (!again || moth_wire_now() >= deadline)
      return -1;
    const volatile sig_atomic_t *flag = moth_interrupt_flag();
    int error = errno;
    nanosleep(&(struct timespec){0, nap * 1000000}, NULL);
    errno = error;
    if (flag && *flag) {
      errno = EINTR;
      return -1;
    }
  }
}

const char *moth_wire_address(int fd, char *text, size_t n) {
  struct sockaddr_storage own;
  socklen_t length = sizeof own;
  if (getsockname(fd, (struct sockaddr *)&own, &length) < 0 ||
      getnameinfo((struct sockaddr *)&own, length, text, (socklen_t)n, NULL, 0, NI_NUMERICHOST))
    snprintf(text, n, "127.0.0.1");
  return text;
}

bool moth_wire_is_loopback(const struct sockaddr *a) {
  if (a->sa_family == AF_INET)
    return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
  const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
  return a->sa_family == AF_INET6 &&
         (IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127));
}

int moth_wire_write(int fd, const void *data, size_t n, double deadline) {
  const char *p = data;
  while (n > 0) {
    ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
    if (k >= 0) {
      p += k;
      n -= (size_t)k;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (await(fd, POLLOUT, deadline) < 0)
        return -1;
    } else if (errno != EINTR) {
      return -1;
    }
  }
  return 0;
}

int moth_wire_read(int fd, void *data, size_t n, double deadline) {
  char *p = data;
  while (n > 0) {
    ssize_t k = recv(fd, p, n, 0);
    if (k > 0) {
      p += k;
      n -= (size_t)k;
    } else if (k == 0) {
      errno = EPIPE;
      return -1;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (await(fd, POLLIN, deadline) < 0)
        return -1;
    } else if (errno != EINTR) {
      return -1;
    }
  }
  return 0;
}

int moth_wire_bell(int bell[2]) {
  bell[0] = bell[1] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return bell[0];
}
void moth_wire_ring(const int bell[2]) {
  uint64_t one = 1;
  ssize_t k = write(bell[1], &one, sizeof one);
  (void)k; /* full: it rings already */
}
void moth_wire_hush(const int bell[2]) {
  uint64_t count;
  ssize_t k = read(bell[0], &count, sizeof count);
  (void)k;
}

bool moth_wire_same(const char *a, const char *b) {
  size_t n = strlen(a), m = strlen(b);
  unsigned char differ = n != m;
  for (size_t i = 0; i < n && i < m; i++)
    differ |= (unsigned char)(a[i] ^ b[i]);
  return !differ;
}
