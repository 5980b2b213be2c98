/* Checks of files: mapped, written whole or not at all, with system calls that fail and processes that are killed. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/file.h"
#include "io_check.h"

/* System calls that can be told to fail: the k-th from now on, `error` < 0 meaning something
 * milder. */
enum { SHORT_WRITE = -1, ZERO_WRITE = -2 };
enum { CALL_WRITE, CALL_FSYNC, CALL_RENAME, CALL_FCHMOD, CALL_OPENAT, CALLS };
static struct { int countdown, error, seen; } fault[CALLS];

static int strikes(int call) {
  fault[call].seen++;
  if (fault[call].countdown == 0 || --fault[call].countdown > 0)
    return 0;
  errno = fault[call].error;
  return 1;
}

ssize_t __real_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n) {
  if (fault[CALL_WRITE].error == SHORT_WRITE)
    return __real_write(fd, bytes, n > 3 ? 3 : n);
  if (fault[CALL_WRITE].error == ZERO_WRITE)
    return 0;
  return strikes(CALL_WRITE) ? -1 : __real_write(fd, bytes, n);
}
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
  return strikes(CALL_FSYNC) ? -1 : __real_fsync(fd);
}
int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to) {
  return strikes(CALL_RENAME) ? -1 : __real_renameat(from_dir, from, to_dir, to);
}
int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode) {
  return strikes(CALL_FCHMOD) ? -1 : __real_fchmod(fd, mode);
}
int __real_openat(int folder, const char *name, int flags, mode_t mode);
int __wrap_openat(int folder, const char *name, int flags, mode_t mode);
int __wrap_openat(int folder, const char *name, int flags, mode_t mode) {
  return strikes(CALL_OPENAT) ? -1 : __real_openat(folder, name, flags, mode);
}

static const char *path_of(const char *name) {
  static char path[4][600];
  static int next;
  char *p = path[next++ % 4];
  snprintf(p, sizeof *path, "%s/%s", io_check_dir, name);
  return p;
}

static MothStatus write_text(const char *path, const char *text) {
  size_t half = strlen(text) / 2;
  MothPiece pieces[] = {{text, half}, {NULL, 0}, {text + half, strlen(text) - half}};
  return moth_file_write_atomic(path, pieces, 3);
}

static bool holds(const char *path, const char *text) {
  MothFileMap map;
  if (moth_file_map(path, &map) != MOTH_OK)
    return false;
  bool same = map.size == (int64_t)strlen(text) && memcmp(map.bytes, text, strlen(text)) == 0;
  moth_file_unmap(&map);
  return same;
}

static int count_files(void) {
  char command[700];
  int n = -1;
  snprintf(command, sizeof command, "ls -A '%s' | wc -l", io_check_dir);
  FILE *pipe = popen(command, "r");
  if (!pipe || fscanf(pipe, "%d", &n) != 1)
    n = -1;
  if (pipe)
    pclose(pipe);
  return n;
}

static unsigned mode_of(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 ? info.st_mode & 07777 : 0;
}

void check_map(void) {
  MothFileMap map;
  CHECK(write_text(path_of("empty"), "") == MOTH_OK, "%s", moth_last_error());
  CHECK(moth_file_map(path_of("empty"), &map) == MOTH_OK && map.size == 0 && map.bytes, "empty");
  moth_file_unmap(&map);
  moth_file_unmap(&map);
  check_fails(moth_file_map(path_of("none"), &map), MOTH_ERR_IO, "No such file", "none");
  CHECK(strstr(moth_last_error(), path_of("none")) != NULL, "%s", moth_last_error());
  check_fails(moth_file_map(io_check_dir, &map), MOTH_ERR_IO, "not a regular file", "folder");
  check_fails(moth_file_map("/dev/zero", &map), MOTH_ERR_IO, "not a regular file", "device");
  CHECK(mkfifo(path_of("fifo"), 0600) == 0, "fifo");
  check_fails(moth_file_map(path_of("fifo"), &map), MOTH_ERR_IO, "not a regular file", "fifo");
}

static void touch(const char *name) {
  FILE *file = fopen(path_of(name), "w");
  if (file)
    fclose(file);
}

static bool exists(const char *name) {
  return access(path_of(name), F_OK) == 0;
}

void check_write(void) {
  char path[600];
  snprintf(path, sizeof path, "%s/file", io_check_dir);
  struct stat info;
  umask(027);
  CHECK(write_text(path, "one") == MOTH_OK && holds(path, "one"), "%s", moth_last_error());
  CHECK(mode_of(path) == 0640, "%o", mode_of(path));
  chmod(path, 0600);
  CHECK(write_text(path, "two and more") == MOTH_OK && holds(path, "two and more"), "%s",
        moth_last_error());
  CHECK(mode_of(path) == 0600, "%o", mode_of(path));
  CHECK(count_files() == 1, "%d files", count_files());

  CHECK(symlink("file", path_of("link")) == 0 && write_text(path_of("link"), "3") == MOTH_OK,
        "link");
  CHECK(lstat(path_of("link"), &info) == 0 && S_ISLNK(info.st_mode) && holds(path_of("file"), "3"),
        "link");

  CHECK(mkfifo(path_of("fifo"), 0600) == 0, "fifo");
  check_fails(write_text(path_of("fifo"), "x"), MOTH_ERR_IO, "not a regular file", "fifo");
  unlink(path_of("fifo"));
  check_fails(write_text(io_check_dir, "x"), MOTH_ERR_IO, "not a regular file", "folder");
  check_fails(write_text(path_of(""), "x"), MOTH_ERR_IO, "not a regular file", "folder/");
  check_fails(write_text(path_of("no/file"), "x"), MOTH_ERR_IO, "No such file", "no folder");
  check_fails(write_text("", "x"), MOTH_ERR_IO, "cannot", "empty path");
  char longest[256], too_long[257];
  memset(longest, 'x', 255);
  longest[255] = 0;
  memset(too_long, 'x', 256);
  too_long[256] = 0;
  CHECK(write_text(path_of(longest), "x") == MOTH_OK, "%s", moth_last_error());
  unlink(path_of(longest));
  check_fails(write_text(path_of(too_long), "x"), MOTH_ERR_IO, "too long", "name");
  CHECK(count_files() == 2, "%d files", count_files());

  char here[512];
  CHECK(getcwd(here, sizeof here) && chdir(io_check_dir) == 0, "chdir");
  CHECK(write_text("file", "relative") == MOTH_OK && holds("file", "relative"), "%s",
        moth_last_error());
  CHECK(chdir(here) == 0, "chdir");

  pid_t dead = fork();
  if (dead == 0)
    _exit(0);
  waitpid(dead, NULL, 0);
  pid_t zombie = fork();
  if (zombie == 0)
    _exit(0);
  siginfo_t how;
  waitid(P_PID, (id_t)zombie, &how, WEXITED | WNOWAIT); /* dead, and not reaped */
  static const char *const kept[] = {".file.tmp.1.0", ".file.tmp.x.0", ".file.tmp.4000000",
                                     ".file.tmp.-5.1"};
  char name[64];
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
    touch(kept[i]);
  snprintf(name, sizeof name, ".other.tmp.%d.0", (int)dead);
  touch(name);
  snprintf(name, sizeof name, ".file.tmp.%d.0x", (int)dead);
  touch(name);
  snprintf(name, sizeof name, ".file.tmp.%d.7", (int)dead);
  touch(name);
  char own[64];
  snprintf(own, sizeof own, ".file.tmp.%d.999999", (int)getpid());
  touch(own);
  char unreaped[64];
  snprintf(unreaped, sizeof unreaped, ".file.tmp.%d.1", (int)zombie);
  touch(unreaped);
  CHECK(write_text(path, "swept") == MOTH_OK, "%s", moth_last_error());
  CHECK(!exists(name) && !exists(own), "%s and %s should have been swept", name, own);
  CHECK(!exists(unreaped), "%s of a zombie should have been swept", unreaped);
  waitpid(zombie, NULL, 0);
  CHECK(count_files() == 2 + 6, "%d files", count_files());
}

void check_faults(void) {
  static const struct {
    int call, error;
    const char *message;
  } faults[] = {
      {CALL_WRITE, ENOSPC, "No space"},      {CALL_WRITE, EIO, "Input/output"},
      {CALL_WRITE, EFBIG, "File too large"}, {CALL_FSYNC, EIO, "Input/output"},
      {CALL_FSYNC, ENOSPC, "No space"},      {CALL_RENAME, EXDEV, "cross-device"},
      {CALL_RENAME, EACCES, "Permission"},   {CALL_FCHMOD, EPERM, "permitted"},
      {CALL_OPENAT, EMFILE, "open files"},
  };
  char path[600];
  snprintf(path, sizeof path, "%s/file", io_check_dir);
  CHECK(write_text(path, "old content") == MOTH_OK, "%s", moth_last_error());
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
    for (int k = 1;; k++) {
      int call = faults[i].call;
      fault[call].countdown = k;
      fault[call].error = faults[i].error;
      fault[call].seen = 0;
      MothStatus status = write_text(path, "new content!");
      bool struck = fault[call].countdown == 0;
      fault[call].countdown = 0;
      fault[call].error = 0;
      if (!struck) {
        CHECK(status == MOTH_OK && holds(path, "new content!"), "%s", moth_last_error());
        CHECK(write_text(path, "old content") == MOTH_OK, "%s", moth_last_error());
        break;
      }
      if (call == CALL_OPENAT && status == MOTH_OK) { /* only the sweep was hindered */
        CHECK(write_text(path, "old content") == MOTH_OK, "%s", moth_last_error());
        continue;
      }
      check_fails(status, MOTH_ERR_IO, faults[i].message, "fault");
      CHECK(strstr(moth_last_error(), path) != NULL, "no path in %s", moth_last_error());
      bool after_rename = call == CALL_FSYNC && k == 2;
      CHECK(holds(path, after_rename ? "new content!" : "old content"), "fault %zu at %d", i, k);
      CHECK(count_files() == 1, "%d files after fault %zu at %d", count_files(), i, k);
    }
  for (int call = CALL_WRITE; call <= CALL_FSYNC; call++)
    for (int k = 1; k <= 2; k++) {
      fault[call].countdown = k;
      fault[call].error = EINTR;
      CHECK(write_text(path, "interrupted") == MOTH_OK && holds(path, "interrupted"), "%s",
            moth_last_error());
      CHECK(fault[call].countdown == 0, "no call %d", call);
    }
  fault[CALL_WRITE].error = SHORT_WRITE;
  CHECK(write_text(path, "in many short writes") == MOTH_OK, "%s", moth_last_error());
  CHECK(holds(path, "in many short writes"), "short writes");
  fault[CALL_WRITE].error = ZERO_WRITE;
  check_fails(write_text(path, "x"), MOTH_ERR_IO, "takes no more", "zero");
  fault[CALL_WRITE].error = 0;
  CHECK(holds(path, "in many short writes") && count_files() == 1, "zero");
}

static void *write_often(void *text) {
  char path[600];
  snprintf(path, sizeof path, "%s/shared", io_check_dir);
  for (int i = 0; i < 200; i++)
    CHECK(write_text(path, text) == MOTH_OK, "%s", moth_last_error());
  return NULL;
}

/* Killed at any time, or with several writers, the file is one of the versions and nothing is left.
 */
void check_kill(void) {
  enum { SIZE = 400000 };
  char path[600];
  snprintf(path, sizeof path, "%s/file", io_check_dir);
  char *content = malloc(SIZE + 1);
  content[SIZE] = 0;
  memset(content, 'a', SIZE);
  CHECK(write_text(path, content) == MOTH_OK, "%s", moth_last_error());
  int lost = 0;
  for (int i = 0; i < 100; i++) {
    pid_t child = fork();
    if (child == 0) {
      for (int k = 0;; k++) {
        memset(content, 'b' + k % 20, SIZE);
        write_text(path, content);
      }
    }
    usleep((useconds_t)(i * 50));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    MothFileMap map;
    if (moth_file_map(path, &map) != MOTH_OK || map.size != SIZE) {
      lost++;
      continue;
    }
    for (int k = 1; k < SIZE; k++)
      if (map.bytes[k] != map.bytes[0]) {
        lost++;
        break;
      }
    moth_file_unmap(&map);
  }
  CHECK(lost == 0, "%d of 100 lost", lost);
  CHECK(write_text(path, "end") == MOTH_OK && count_files() == 1, "%d files", count_files());
  free(content);

  pthread_t threads[4];
  static char texts[4][8] = {"one", "two", "three", "four"};
  for (int i = 0; i < 4; i++)
    pthread_create(&threads[i], NULL, write_often, texts[i]);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  CHECK(count_files() == 2, "%d files", count_files());
}

void check_signals(void) {
  struct sigaction action;
  moth_io_init();
  sigaction(SIGXFSZ, NULL, &action);
  CHECK(action.sa_handler == SIG_IGN, "SIGXFSZ");
  signal(SIGPIPE, exit);
  moth_io_init();
  sigaction(SIGPIPE, NULL, &action);
  CHECK(action.sa_handler == exit, "a handler of the host");
}
