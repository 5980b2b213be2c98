/* Child processes and signals, for moth.distributed.launch. */
#include "comm/process.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lua/moth_lua.h"

extern char **environ;

static const struct {
  const char *name;
  int number;
} signals[] = {{"CHLD", SIGCHLD}, {"HUP", SIGHUP},   {"INT", SIGINT},   {"KILL", SIGKILL},
               {"QUIT", SIGQUIT}, {"TERM", SIGTERM}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2},
               {"SEGV", SIGSEGV}, {"ABRT", SIGABRT}, {"BUS", SIGBUS},   {"FPE", SIGFPE},
               {"ILL", SIGILL},   {"PIPE", SIGPIPE}, {"STOP", SIGSTOP}, {"CONT", SIGCONT}};
enum { NSIGNALS = sizeof signals / sizeof *signals };

static int number_of(lua_State *L, const char *name) {
  for (int i = 0; i < NSIGNALS; i++)
    if (strcmp(signals[i].name, name) == 0)
      return signals[i].number;
  return moth_lua_error(L, "there is no signal '%s'", name);
}

/* The strings of the list at idx, then NULL, in a userdata that is pushed; `more` further places. */
static char **words_at(lua_State *L, int idx, size_t more, int *n) {
  luaL_checktype(L, idx, LUA_TTABLE);
  *n = (int)lua_objlen(L, idx);
  char **words = lua_newuserdata(L, ((size_t)*n + more + 1) * sizeof *words);
  for (int i = 0; i < *n; i++) {
    lua_rawgeti(L, idx, i + 1);
    words[i] = (char *)luaL_checkstring(L, -1); /* the list retains it */
    lua_pop(L, 1);
  }
  words[*n] = NULL;
  return words;
}

static bool same_name(const char *a, const char *b) {
  size_t n = strcspn(a, "=");
  return strncmp(a, b, n) == 0 && b[n] == '=';
}

/* start(words, variables, with_input) -> pid, out, err, in. variables: "NAME=value", beside those of this process; a
 * name alone: without it. */
static int b_start(lua_State *L) {
  int nwords, nown, pid, out, err, in = -1;
  size_t before = 0;
  while (environ[before])
    before++;
  char **words = words_at(L, 1, 0, &nwords);
  char **own = words_at(L, 2, before, &nown);
  bool with_input = lua_toboolean(L, 3);
  if (nwords == 0)
    return moth_lua_error(L, "expected a program");
  int n = nown;
  for (size_t i = 0; i < before; i++) {
    bool hidden = false;
    for (int k = 0; k < nown && !hidden; k++)
      hidden = same_name(own[k], environ[i]);
    if (!hidden)
      own[n++] = environ[i];
  }
  own[n] = NULL;
  int kept = 0;
  for (int i = 0; i < n; i++)
    if (strchr(own[i], '='))
      own[kept++] = own[i];
  own[kept] = NULL;
  moth_lua_done(L, moth_process_start(words, own, &pid, with_input ? &in : NULL, &out, &err));
  lua_pushinteger(L, pid);
  lua_pushinteger(L, out);
  lua_pushinteger(L, err);
  lua_pushinteger(L, in);
  return 4;
}

static int b_ended(lua_State *L) { /* (pid) -> nil, or its exit code, or minus a signal */
  int status;
  if (!moth_process_ended((int)luaL_checkinteger(L, 1), &status))
    return 0;
  lua_pushinteger(L, status);
  return 1;
}

static int b_signal(lua_State *L) { /* (pid, name) */
  int pid = (int)moth_lua_check_integer(L, 1, 2, 1e9);
  moth_process_signal(pid, number_of(L, luaL_checkstring(L, 2)));
  return 0;
}

static int b_signal_name(lua_State *L) { /* (number) -> "SIGKILL", or nil */
  int number = (int)luaL_checkinteger(L, 1);
  for (int i = 0; i < NSIGNALS; i++)
    if (signals[i].number == number) {
      lua_pushfstring(L, "SIG%s", signals[i].name);
      return 1;
    }
  return 0;
}

static int b_catch(lua_State *L) { /* (names) */
  int n, numbers[NSIGNALS];
  char **names = words_at(L, 1, 0, &n);
  for (int i = 0; i < n && i < NSIGNALS; i++)
    numbers[i] = number_of(L, names[i]);
  return moth_lua_done(L, moth_process_catch(numbers, n < NSIGNALS ? n : NSIGNALS));
}
static int b_release(lua_State *L) {
  (void)L;
  moth_process_release();
  return 0;
}

static int b_wait(lua_State *L) { /* (fds, seconds) -> list of those that can be read */
  luaL_checktype(L, 1, LUA_TTABLE);
  int n = (int)lua_objlen(L, 1);
  double seconds = luaL_checknumber(L, 2);
  int *fds = lua_newuserdata(L, ((size_t)n + 1) * sizeof *fds);
  bool *ready = lua_newuserdata(L, (size_t)n + 1);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 1, i + 1);
    fds[i] = (int)luaL_checkinteger(L, -1);
    lua_pop(L, 1);
  }
  moth_lua_done(L, moth_process_wait(fds, n, seconds, ready));
  lua_newtable(L);
  for (int i = 0, k = 0; i < n; i++)
    if (ready[i]) {
      lua_pushinteger(L, fds[i]);
      lua_rawseti(L, -2, ++k);
    }
  return 1;
}

static int b_caught(lua_State *L) { /* () -> "TERM", or nil */
  int number = moth_process_caught();
  for (int i = 0; i < NSIGNALS; i++)
    if (signals[i].number == number) {
      lua_pushstring(L, signals[i].name);
      return 1;
    }
  return 0;
}

static int b_read(lua_State *L) { /* (fd) -> bytes; "": none now; nil: it has ended */
  char bytes[16384];
  ssize_t n = read((int)luaL_checkinteger(L, 1), bytes, sizeof bytes);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
    return 0;
  lua_pushlstring(L, bytes, n > 0 ? (size_t)n : 0);
  return 1;
}
static int b_write(lua_State *L) { /* (fd, bytes) -> whether they were written */
  size_t size;
  const char *bytes = luaL_checklstring(L, 2, &size);
  lua_pushboolean(L, write((int)luaL_checkinteger(L, 1), bytes, size) == (ssize_t)size);
  return 1;
}
static int b_close(lua_State *L) { /* (fd) */
  close((int)luaL_checkinteger(L, 1));
  return 0;
}

static int b_host(lua_State *L) { /* () -> the name of this machine, the number of its processors */
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  lua_pushstring(L, name);
  lua_pushinteger(L, (lua_Integer)sysconf(_SC_NPROCESSORS_ONLN));
  return 2;
}

static int b_executable(lua_State *L) { /* () -> the path of the program that this process runs */
  char path[4096];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0)
    return 0;
  lua_pushlstring(L, path, (size_t)n);
  return 1;
}

void moth_lua_open_processes(
    lua_State *L) { /* the binding's table is on top: into its field process */
  static const luaL_Reg fns[] = {{"start", b_start},
                                 {"ended", b_ended},
                                 {"signal", b_signal},
                                 {"signal_name", b_signal_name},
                                 {"catch", b_catch},
                                 {"release", b_release},
                                 {"wait", b_wait},
                                 {"caught", b_caught},
                                 {"read", b_read},
                                 {"write", b_write},
                                 {"close", b_close},
                                 {"host", b_host},
                                 {"executable", b_executable},
                                 {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, fns);
  lua_setfield(L, -2, "process");
}
