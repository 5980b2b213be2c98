/* See store_token.h. All is done by descriptors of a folder that was checked: nobody can put a link in between. */
#include "comm/store_token.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/wire.h"

bool moth_token_draw(void *bytes, size_t n) {
  return getrandom(bytes, n, 0) == (ssize_t)n;
}

bool moth_token_name(MothTokenFile *t, int fd, bool other_end) {
  struct sockaddr_storage a = {0};
  socklen_t n = sizeof a;
  char host[64], port[16];
  *t = (MothTokenFile){0};
  if ((other_end ? getpeername : getsockname)(fd, (struct sockaddr *)&a, &n) < 0 ||
      !moth_wire_is_loopback((const struct sockaddr *)&a) ||
      getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV))
    return false;
  snprintf(t->name, sizeof t->name, "store-%s-%s", host, port);
  return true;
}

/* Whether what fd has is this user's alone, and of the right kind; else why says what is wrong with path. */
static bool own(MothTokenFile *t, int fd, mode_t kind, const char *path) {
  struct stat st;
  if (fstat(fd, &st) < 0)
    snprintf(t->why, sizeof t->why, "%s: %s", path, strerror(errno));
  else if ((st.st_mode & S_IFMT) != kind)
    snprintf(t->why, sizeof t->why, "%s is no %s", path, kind == S_IFDIR ? "folder" : "file");
  else if (st.st_uid != geteuid())
    snprintf(t->why, sizeof t->why, "%s belongs to the user %u, not to %u", path,
             (unsigned)st.st_uid, (unsigned)geteuid());
  else if (st.st_mode & 077)
    snprintf(t->why, sizeof t->why, "other users have access to %s (mode %o, expected %o)", path,
             (unsigned)st.st_mode & 0777, kind == S_IFDIR ? 0700 : 0600);
  else
    return true;
  return false;
}

/* A descriptor of the i-th folder, or -1: why says more, unless the folder is only missing. make: it is made if it can
 * be. *unsafe: it is there, but not this user's alone. */
static int folder(MothTokenFile *t, int i, bool make, bool *unsafe) {
  char path[400];
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  t->why[0] = t->path[0] = 0;
  if (i == 0) {
    if (!runtime || runtime[0] != '/' || strlen(runtime) > 300)
      return -1;
    int fd = open(runtime, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok =
        fd >= 0 && own(t, fd, S_IFDIR, runtime); /* another user's, as after su: the next one */
    if (fd >= 0)
      close(fd);
    if (!ok)
      return -1;
    snprintf(path, sizeof path, "%s/moth", runtime);
  } else {
    snprintf(path, sizeof path, "/tmp/moth-%u", (unsigned)geteuid());
  }
  if (make && mkdir(path, 0700) < 0 && errno != EEXIST) {
    snprintf(t->why, sizeof t->why, "%s: %s", path, strerror(errno));
    return -1;
  }
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    int error = errno;
    if (make || error != ENOENT)
      snprintf(t->why, sizeof t->why, "%s: %s", path,
               error == ELOOP || error == ENOTDIR ? "it is a link, or no folder" : strerror(error));
    *unsafe = error == ELOOP || error == ENOTDIR;
    return -1;
  }
  if (!own(t, fd, S_IFDIR, path)) {
    *unsafe = true;
    close(fd);
    return -1;
  }
  snprintf(t->path, sizeof t->path, "%s/%s", path, t->name);
  return fd;
}

/* Writes the token to a new file, which then takes the place of an old one. */
static bool write_token(MothTokenFile *t, int dir) {
  char fresh[128];
  snprintf(fresh, sizeof fresh, ".%s.%d", t->name, (int)getpid());
  unlinkat(dir, fresh, 0);
  int fd = openat(dir, fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  bool ok = fd >= 0 && write(fd, t->token, MOTH_TOKEN_DIGITS) == MOTH_TOKEN_DIGITS &&
            fchmod(fd, 0600) == 0;
  int error = errno;
  if (fd >= 0)
    close(fd);
  if (ok && renameat(dir, fresh, dir, t->name) < 0) {
    error = errno;
    ok = false;
  }
  if (!ok) {
    unlinkat(dir, fresh, 0);
    snprintf(t->why, sizeof t->why, "%s: %s", t->path, strerror(error));
  }
  return ok;
}

bool moth_token_keep(MothTokenFile *t, bool *unsafe) {
  unsigned char bytes[MOTH_TOKEN_DIGITS / 2];
  *unsafe = false;
  if (!moth_token_draw(bytes, sizeof bytes)) {
    snprintf(t->why, sizeof t->why, "no random bytes: %s", strerror(errno));
    return false;
  }
  for (size_t k = 0; k < sizeof bytes; k++)
    snprintf(t->token + 2 * k, 3, "%02x", bytes[k]);
  for (int i = 0; i < MOTH_TOKEN_FOLDERS && !*unsafe; i++) {
    int dir = folder(t, i, true, unsafe);
    if (dir < 0)
      continue;
    bool ok = write_token(t, dir);
    close(dir);
    if (ok)
      return true;
  }
  t->token[0] = t->path[0] = 0;
  return false;
}

bool moth_token_read(MothTokenFile *t, int i) {
  bool unsafe = false;
  t->token[0] = 0;
  int dir = folder(t, i, false, &unsafe);
  if (dir < 0)
    return false;
  int fd = openat(dir, t->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  int error = errno;
  close(dir);
  if (fd < 0) {
    if (error != ENOENT)
      snprintf(t->why, sizeof t->why, "%s: %s", t->path,
               error == ELOOP ? "it is a link" : strerror(error));
    return false;
  }
  bool ok = own(t, fd, S_IFREG, t->path);
  if (ok && read(fd, t->token, MOTH_TOKEN_DIGITS) != MOTH_TOKEN_DIGITS) {
    snprintf(t->why, sizeof t->why, "%s: no token of %d digits", t->path, MOTH_TOKEN_DIGITS);
    t->token[0] = 0;
    ok = false;
  }
  close(fd);
  return ok;
}

void moth_token_remove(MothTokenFile *t) {
  if (t->path[0])
    unlink(t->path);
  t->path[0] = 0;
}
