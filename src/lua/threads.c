/* Threads with a Lua state each, and channels of messages between states, for lua/moth/data/pool.lua.
 *
 * A thread runs the function that a module returns; it shares nothing with its starter but channels and the tensors of
 * messages. It can be asked to stop: a signal makes its own thread set its interrupt flag, which moth's ops poll, and a
 * hook, which the interpreter calls. A compiled loop that calls no op of moth's, or a call of C that does not return,
 * cannot be stopped: such a thread is abandoned, which means that it keeps its memory and ends when it ends. At the
 * end of the process all threads are stopped; where one does not end, the process ends without the handlers of
 * atexit, which would free what the thread still uses. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "lua/message.h"

#include <lualib.h>

#define MAGIC_THREAD 0x6d6f746854687264ull

static char key_thread;

/* --- threads -----------------------------------------------------------------------------------
 */

typedef struct Thread Thread;
struct Thread {
  Thread *next, *previous; /* in the list of those that run */
  _Atomic int refs;
  pthread_t id;
  int number;
  char *module, *path, *cpath;
  MothMessage *arguments;
  MothChannel *inbox;  /* its requests; closed where nobody refers to the thread any more */
  MothChannel *report; /* told of its end */
  volatile sig_atomic_t interrupt;
  lua_State *volatile L; /* for the signal's handler; NULL: nothing to stop */
  _Atomic bool stopping;
  _Atomic double note;  /* what it works on */
  pthread_mutex_t lock; /* of the fields below */
  pthread_cond_t changed;
  bool ended, joined; /* joined, or abandoned */
};

static pthread_mutex_t threads_lock = PTHREAD_MUTEX_INITIALIZER;
static Thread *threads; /* that run, the abandoned ones too; each with a reference */
static int nthreads;
static int stop_signal; /* 0: no thread was started yet */
static _Thread_local Thread *self MOTH_LUA_TLS;

static void thread_release(Thread *t) {
  if (atomic_fetch_sub(&t->refs, 1) > 1)
    return;
  free(t->module);
  free(t->path);
  free(t->cpath);
  moth_message_free(t->arguments);
  moth_channel_release(t->inbox);
  moth_channel_release(t->report);
  pthread_mutex_destroy(&t->lock);
  pthread_cond_destroy(&t->changed);
  free(t);
}

static void stop_hook(lua_State *L, lua_Debug *where) {
  (void)where;
  lua_sethook(L, NULL, 0, 0);
  luaL_error(L, "interrupted");
}

/* Runs in the thread that is to stop. */
static void on_stop(int number) {
  (void)number;
  Thread *t = self;
  if (!t || !t->L)
    return;
  t->interrupt = 1;
  lua_sethook(t->L, stop_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

/* A signal that nobody else uses: SIGURG is ignored by default, and few programs want it. */
static void find_stop_signal(void) {
  int candidates[] = {SIGURG, SIGRTMIN + 3, SIGRTMIN + 4, SIGRTMIN + 5};
  for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
    struct sigaction old;
    sigaction(candidates[i], NULL, &old);
    if (old.sa_flags & SA_SIGINFO || (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN))
      continue;
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    sigaction(candidates[i], &action, NULL);
    stop_signal = candidates[i];
    return;
  }
}

/* Asks it to stop; to be repeated until it has ended, since code of the user may catch the error. */
static void thread_stop(Thread *t) {
  atomic_store(&t->stopping, true);
  pthread_mutex_lock(&t->lock);
  if (!t->ended && !t->joined && stop_signal)
    pthread_kill(t->id, stop_signal);
  pthread_mutex_unlock(&t->lock);
}

/* Whether it ended within so many seconds; it is joined then. */
static bool thread_join(Thread *t, double seconds) {
  struct timespec until = moth_deadline(seconds);
  pthread_mutex_lock(&t->lock);
  while (!t->ended && !t->joined && seconds > 0) {
    if (pthread_cond_timedwait(&t->changed, &t->lock, &until) == ETIMEDOUT)
      break;
  }
  bool ended = t->ended, join = ended && !t->joined;
  t->joined |= ended;
  pthread_mutex_unlock(&t->lock);
  if (join)
    pthread_join(t->id, NULL);
  return ended;
}

static bool thread_abandon(Thread *t) {
  pthread_mutex_lock(&t->lock);
  bool abandon = !t->joined && !t->ended;
  if (abandon) {
    t->joined = true;
    pthread_detach(t->id);
  }
  pthread_mutex_unlock(&t->lock);
  return abandon;
}

/* At the end of the process (on_exit). */
static void end_threads(int status, void *pid) {
  if ((pid_t)(intptr_t)pid != getpid())
    return; /* a child of fork, which has no threads */
  struct timespec now, until = moth_deadline(1);
  for (;;) {
    pthread_mutex_lock(&threads_lock);
    for (Thread *t = threads; t; t = t->next) {
      if (t != self)
        thread_stop(t);
    }
    bool none = !threads;
    pthread_mutex_unlock(&threads_lock);
    if (none)
      return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (self || now.tv_sec > until.tv_sec ||
        (now.tv_sec == until.tv_sec && now.tv_nsec > until.tv_nsec))
      break;
    nanosleep(&(struct timespec){0, 2000000}, NULL);
  }
  fflush(stdout);
  fflush(stderr);
  _exit(status);
}

/* --- in the thread --- */

static void set_string(lua_State *L, const char *table, const char *field, const char *text) {
  lua_getglobal(L, table);
  lua_pushstring(L, text);
  lua_setfield(L, -2, field);
  lua_pop(L, 1);
}

static int add_traceback(lua_State *L) {
  luaL_traceback(L, L, lua_tostring(L, 1), 1);
  return 1;
}

static int run_module(lua_State *L) {
  Thread *t = lua_touserdata(L, 1);
  lua_settop(L, 0);
  luaL_openlibs(L);
  lua_pushlightuserdata(L, (void *)&t->interrupt);
  lua_setfield(L, LUA_REGISTRYINDEX, MOTH_LUA_INTERRUPT);
  set_string(L, "package", "path", t->path);
  set_string(L, "package", "cpath", t->cpath);
  lua_pushcfunction(L, add_traceback);
  lua_getglobal(L, "require");
  lua_pushstring(L, t->module);
  lua_call(L, 1, 1);
  MothMessage *m = t->arguments;
  int n = moth_message_unpack(L, m);
  t->arguments = NULL;
  moth_message_free(m);
  if (lua_pcall(L, n, 0, 1) != 0)
    return lua_error(L);
  return 0;
}

/* Tells { "ended", number[, error] }. */
static void report_end(Thread *t, lua_State *L, const char *error) {
  const char *what;
  char path[MOTH_MESSAGE_PATH];
  lua_settop(L, 0);
  lua_pushliteral(L, "ended");
  lua_pushinteger(L, t->number);
  lua_pushstring(L, error);
  MothMessage *m = moth_message_pack(L, 1, 3, &what, path);
  if (m)
    moth_channel_push(t->report, m);
}

static void *run_thread(void *data) {
  Thread *t = data;
  char *handlers_stack = malloc(1 << 16); /* as in the launcher: code may use the stack pointer */
  stack_t stack = {.ss_sp = handlers_stack, .ss_size = 1 << 16}, off = {.ss_flags = SS_DISABLE};
  if (handlers_stack)
    sigaltstack(&stack, NULL);
  self = t;
  char name[16]; /* for those who look at the process */
  snprintf(name, sizeof name, "moth worker %u", (unsigned)t->number % 1000);
  pthread_setname_np(pthread_self(), name);
  sigset_t open;
  sigemptyset(&open);
  sigaddset(&open, stop_signal);
  lua_State *L = luaL_newstate();
  char *error = NULL;
  if (L) {
    t->L = L;
    pthread_sigmask(SIG_UNBLOCK, &open, NULL);
    int status = lua_cpcall(L, run_module, t);
    pthread_sigmask(SIG_BLOCK, &open, NULL);
    t->L = NULL;
    t->interrupt = 0;
    lua_sethook(L, NULL, 0, 0);
    if (status != 0) {
      const char *text = lua_tostring(L, -1);
      error = strdup(text ? text : "an error without a message");
    }
    lua_close(L);
  } else {
    error = strdup("there is no memory for a Lua state");
  }
  if ((L = luaL_newstate())) { /* a bare one, to write the report */
    report_end(t, L, error);
    lua_close(L);
  }
  free(error);
  sigaltstack(&off, NULL);
  free(handlers_stack);
  pthread_mutex_lock(&threads_lock);
  if (t->previous)
    t->previous->next = t->next;
  else
    threads = t->next;
  if (t->next)
    t->next->previous = t->previous;
  nthreads--;
  pthread_mutex_unlock(&threads_lock);
  pthread_mutex_lock(&t->lock);
  t->ended = true;
  pthread_cond_broadcast(&t->changed);
  pthread_mutex_unlock(&t->lock);
  thread_release(t);
  return NULL;
}

/* Starts t with all signals blocked that the host may want to see in its own threads. */
static int thread_start(Thread *t) {
  pthread_mutex_lock(&threads_lock);
  if (!stop_signal) {
    find_stop_signal();
    on_exit(end_threads, (void *)(intptr_t)getpid());
  }
  sigset_t block, before;
  sigfillset(&block);
  const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGPROF};
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
    sigdelset(&block, faults[i]);
  pthread_sigmask(SIG_BLOCK, &block, &before);
  atomic_fetch_add(&t->refs, 1);
  t->ended = t->joined = false;
  int error = pthread_create(&t->id, NULL, run_thread, t);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error) {
    atomic_fetch_sub(&t->refs, 1);
    t->ended = t->joined = true;
  } else {
    t->next = threads;
    if (threads)
      threads->previous = t;
    threads = t;
    nthreads++;
  }
  pthread_mutex_unlock(&threads_lock);
  return error;
}

/* --- the binding ---------------------------------------------------------------------------------
 */

static Thread *thread_at(lua_State *L, int idx) {
  return ((MothHandle *)moth_lua_check_handle(L, idx, MAGIC_THREAD, "thread"))->u.other;
}

static char *field_of_package(lua_State *L, const char *field) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, field);
  const char *text = lua_tostring(L, -1);
  char *copy = strdup(text ? text : "");
  lua_pop(L, 2);
  return copy;
}

/* start(module, number, report, inbox, …) -> thread; nil, what, path: an argument cannot travel. The thread calls
 * require(module)(inbox, …); `report` gets "ended", number and, where it failed, the error. */
static int b_start(lua_State *L) {
  const char *module = luaL_checkstring(L, 1), *what = NULL;
  char path[MOTH_MESSAGE_PATH];
  int number = (int)luaL_checkinteger(L, 2);
  MothChannel *report = moth_lua_channel_at(L, 3), *inbox = moth_lua_channel_at(L, 4);
  MothHandle *h = moth_lua_new_handle(L, MAGIC_THREAD, &key_thread);
  lua_insert(L, 1);
  Thread *t = calloc(1, sizeof *t);
  if (!t)
    return moth_lua_raise(L, moth_no_memory(sizeof *t));
  h->u.other = t;
  t->refs = 1;
  t->ended = t->joined = true; /* until it runs */
  t->number = number;
  moth_make_lock(&t->lock, &t->changed);
  moth_channel_retain(t->report = report);
  moth_channel_retain(t->inbox = inbox);
  t->module = strdup(module);
  t->path = field_of_package(L, "path");
  t->cpath = field_of_package(L, "cpath");
  if (!t->module || !t->path || !t->cpath)
    return moth_lua_raise(L, moth_no_memory(0));
  t->arguments = moth_lua_message_of(L, 5, &what, path);
  if (!t->arguments) {
    lua_pushnil(L);
    lua_pushstring(L, what);
    lua_pushstring(L, path);
    return 3;
  }
  int error = thread_start(t);
  if (error)
    return moth_lua_error(L, "no thread could be started: %s", strerror(error));
  lua_settop(L, 1);
  return 1;
}

static int b_stop(lua_State *L) {
  thread_stop(thread_at(L, 1));
  return 0;
}
static int b_join(lua_State *L) { /* (thread, seconds) -> whether it has ended */
  lua_pushboolean(L, thread_join(thread_at(L, 1), luaL_checknumber(L, 2)));
  return 1;
}
static int b_abandon(lua_State *L) { /* -> whether it still ran */
  lua_pushboolean(L, thread_abandon(thread_at(L, 1)));
  return 1;
}
static int b_note(lua_State *L) { /* (thread) -> the number that it gave to set_note last */
  lua_pushnumber(L, atomic_load(&thread_at(L, 1)->note));
  return 1;
}
static int b_set_note(lua_State *L) { /* (number), in a thread */
  if (self)
    atomic_store(&self->note, luaL_checknumber(L, 1));
  return 0;
}
static int b_running(lua_State *L) { /* -> how many threads run in the process */
  pthread_mutex_lock(&threads_lock);
  lua_pushinteger(L, nthreads);
  pthread_mutex_unlock(&threads_lock);
  return 1;
}

/* A thread that nobody refers to any more is stopped. */
static int thread_gc(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_THREAD);
  Thread *t = h ? h->u.other : NULL;
  if (!t)
    return 0;
  h->magic = 0;
  if (t->inbox)
    moth_channel_close(t->inbox);
  bool ended = thread_join(t, 0.01);
  for (int i = 0; i < 100 && !ended; i++) {
    thread_stop(t);
    ended = thread_join(t, 0.02);
  }
  static _Atomic bool said;
  if (thread_abandon(t) && !atomic_exchange(&said, true))
    fprintf(stderr, "moth: warning: a worker thread has not ended within 2 s of its loader; it is "
                    "left to itself, with its memory\n");
  thread_release(t);
  return 0;
}

void moth_lua_open_threads(
    lua_State *L) { /* the binding's table is on top: into its field threads */
  static const luaL_Reg fns[] = {{"start", b_start},     {"stop", b_stop}, {"join", b_join},
                                 {"abandon", b_abandon}, {"note", b_note}, {"set_note", b_set_note},
                                 {"running", b_running}, {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, fns);
  moth_lua_open_channels(L);
  moth_lua_new_class(L, &key_thread, "moth.Thread", thread_gc);
  lua_setfield(L, -2, "threads");
}
