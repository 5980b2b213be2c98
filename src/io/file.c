/* Note [Temporary files]: a temporary is called .<base>.tmp.<pid>.<n> and its writer holds a flock
 * on it. It is stale if no such process lives and the lock is free (the lock is what counts where
 * processes of other pid namespaces share the folder). One with our own pid may be another thread's
 * or that of a former process of the same number: the lock decides, and opening + locking and
 * sweeping exclude each other. The lock is released after the rename. */
#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

enum {
  BASE_MAX = 200,     /* bytes of the base kept in a temporary's name, NAME_MAX being 255 */
  TEMP_MAX = 256,     /* .<base>.tmp.<pid>.<n> and its NUL */
  TRIES = 100,        /* temporary names in use before giving up; writes of 0 bytes, too */
  WRITE_MAX = 1 << 30 /* bytes a call of write */
};

static pthread_mutex_t temp_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned temp_number;

static MothStatus fail_errno(const char *what, const char *path, int error) {
  char text[128];
  return moth_fail(MOTH_ERR_IO, "cannot %s %s: %s", what, path,
                   strerror_r(error, text, sizeof text));
}

static void ignore_signal(int signal_number) {
  struct sigaction action;
  if (sigaction(signal_number, NULL, &action) != 0 || action.sa_handler != SIG_DFL)
    return;
  action.sa_handler = SIG_IGN;
  sigaction(signal_number, &action, NULL);
}

void moth_io_init(void) {
  ignore_signal(SIGXFSZ);
  ignore_signal(SIGPIPE);
}

/* ---- reading ----------------------------------------------------------------------------------
 */

static const uint8_t nothing[1];

MothStatus moth_file_map(const char *path, MothFileMap *out) {
  struct stat info;
  *out = (MothFileMap){.bytes = nothing};
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: do not wait for a FIFO */
  if (fd < 0)
    return fail_errno("open", path, errno);
  MothStatus status = MOTH_OK;
  if (fstat(fd, &info) != 0) {
    status = fail_errno("read", path, errno);
  } else if (!S_ISREG(info.st_mode)) {
    status = moth_fail(MOTH_ERR_IO, "cannot read %s: not a regular file", path);
  } else if (info.st_size > 0) {
    void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
      status = fail_errno("map", path, errno);
    else
      *out = (MothFileMap){.bytes = bytes, .size = info.st_size};
  }
  close(fd);
  return status;
}

void moth_file_unmap(MothFileMap *map) {
  if (map->size > 0)
    munmap((void *)(uintptr_t)map->bytes, (size_t)map->size);
  *map = (MothFileMap){.bytes = nothing};
}

/* ---- writing ----------------------------------------------------------------------------------
 */

typedef struct Target {
  char *path;               /* links followed */
  const char *base;         /* its last part */
  int folder;               /* descriptor, or -1 */
  int temp;                 /* descriptor, or -1 */
  char temp_name[TEMP_MAX]; /* "" until it is there and after it is renamed */
} Target;

/* Whether the process is dead and only waits to be reaped: for ever, where process 1 of a container does
 * not do that. */
static bool is_zombie(pid_t pid) {
  char path[64], line[512];
  snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
  FILE *file = fopen(path, "re");
  if (!file)
    return false;
  const char *name_end = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
  fclose(file);
  return name_end && (name_end[2] == 'Z' || name_end[2] == 'X');
}

/* Whether the process that is named in a temporary's name is gone. `rest` is what follows ".tmp.".
 */
static bool has_dead_owner(const char *rest) {
  char *end;
  errno = 0;
  long pid = strtol(rest, &end, 10);
  if (errno || end == rest || *end != '.' || pid <= 0 || pid > INT_MAX ||
      end[1 + strspn(end + 1, "0123456789")] != 0)
    return false;
  return pid == getpid() || (kill((pid_t)pid, 0) != 0 && errno == ESRCH) || is_zombie((pid_t)pid);
}

/* Removes stale temporaries of the target; ignores errors. */
static void sweep(const Target *target) {
  char start[TEMP_MAX];
  int n = snprintf(start, sizeof start, ".%.*s.tmp.", BASE_MAX, target->base);
  int fd = openat(target->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (!dir) {
    if (fd >= 0)
      close(fd);
    return;
  }
  for (struct dirent *file; (file = readdir(dir));) {
    if (strncmp(file->d_name, start, (size_t)n) != 0 || !has_dead_owner(file->d_name + n))
      continue;
    int temp = openat(target->folder, file->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (temp < 0)
      continue;
    if (flock(temp, LOCK_EX | LOCK_NB) == 0)
      unlinkat(target->folder, file->d_name, 0);
    close(temp);
  }
  closedir(dir);
}

static MothStatus open_temp(Target *target) {
  int error = EEXIST;
  pthread_mutex_lock(&temp_lock);
  sweep(target);
  for (int i = 0; i < TRIES && error == EEXIST; i++) {
    snprintf(target->temp_name, sizeof target->temp_name, ".%.*s.tmp.%ld.%u", BASE_MAX,
             target->base, (long)getpid(), temp_number++);
    target->temp = openat(target->folder, target->temp_name,
                          O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    error = target->temp < 0 ? errno : 0;
  }
  if (error == 0)
    flock(target->temp, LOCK_EX | LOCK_NB); /* a file system without locks: the pid decides alone */
  pthread_mutex_unlock(&temp_lock);
  if (error == 0)
    return MOTH_OK;
  target->temp_name[0] = 0;
  return fail_errno("make a temporary file for", target->path, error);
}

static MothStatus write_piece(Target *target, const MothPiece *piece) {
  const char *bytes = piece->bytes;
  size_t left = piece->n;
  int stalls = 0;
  while (left > 0) {
    ssize_t written = write(target->temp, bytes, left < WRITE_MAX ? left : WRITE_MAX);
    if (written < 0 && errno == EINTR)
      continue;
    if (written < 0)
      return fail_errno("write", target->path, errno);
    if (written == 0 && ++stalls == TRIES)
      return moth_fail(MOTH_ERR_IO, "cannot write %s: the system takes no more bytes",
                       target->path);
    bytes += written;
    left -= (size_t)written;
  }
  return MOTH_OK;
}

static int sync_file(int fd) {
  int status;
  do
    status = fsync(fd);
  while (status != 0 && errno == EINTR);
  return status;
}

/* The umask, from /proc: umask() can be read only by setting it, which other threads would notice. */
static mode_t read_umask(void) {
  char line[128];
  unsigned mask = 022;
  FILE *file = fopen("/proc/self/status", "re");
  if (!file)
    return (mode_t)mask;
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "Umask: %o", &mask) == 1)
      break;
  fclose(file);
  return (mode_t)(mask & 0777);
}

/* The permissions of the file that is replaced, or those of a new one. */
static mode_t find_mode(const Target *target) {
  struct stat info;
  if (fstatat(target->folder, target->base, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
      S_ISREG(info.st_mode))
    return info.st_mode & 0777;
  return 0666 & ~read_umask();
}

static MothStatus open_target(Target *target, const char *path) {
  struct stat info;
  bool is_link = lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
    return moth_fail(MOTH_ERR_IO, "cannot write %s: not a regular file", path); /* say, a device */
  target->path = is_link ? realpath(path, NULL) : NULL;
  if (!target->path)
    target->path = strdup(path); /* also for a dangling link, which is then replaced */
  if (!target->path)
    return moth_fail(MOTH_ERR_MEMORY, "no memory to write %s", path);
  char *slash = strrchr(target->path, '/');
  target->base = slash ? slash + 1 : target->path;
  if (!*target->base)
    return fail_errno("write", path, *path ? EISDIR : ENOENT);
  char kept = slash ? slash[1] : 0;
  if (slash)
    slash[1] = 0;
  target->folder = open(slash ? target->path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int error = errno;
  if (slash)
    slash[1] = kept;
  return target->folder < 0 ? fail_errno("open the folder of", target->path, error) : MOTH_OK;
}

static MothStatus write_target(Target *target, const MothPiece *pieces, int count) {
  for (int i = 0; i < count; i++)
    MOTH_TRY(write_piece(target, &pieces[i]));
  if (fchmod(target->temp, find_mode(target)) != 0)
    return fail_errno("set the permissions of", target->path, errno);
  if (sync_file(target->temp) != 0)
    return fail_errno("sync", target->path, errno);
  if (renameat(target->folder, target->temp_name, target->folder, target->base) != 0)
    return fail_errno("replace", target->path, errno);
  target->temp_name[0] = 0;
  if (sync_file(target->folder) != 0 &&
      errno != EINVAL) /* EINVAL: this file system cannot sync a folder */
    return fail_errno("sync the folder after writing", target->path, errno);
  return MOTH_OK;
}

MothStatus moth_file_write_atomic(const char *path, const MothPiece *pieces, int count) {
  Target target = {.folder = -1, .temp = -1};
  MothStatus status;
  MOTH_GO(open_target(&target, path));
  MOTH_GO(open_temp(&target));
  MOTH_GO(write_target(&target, pieces, count));
done:
  if (target.temp_name[0])
    unlinkat(target.folder, target.temp_name, 0);
  if (target.temp >= 0)
    close(target.temp);
  if (target.folder >= 0)
    close(target.folder);
  free(target.path);
  return status;
}
