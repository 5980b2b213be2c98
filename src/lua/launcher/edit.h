/* Reading lines: through libedit where it is found and both ends are a terminal, else plainly. */
#ifndef MOTH_LAUNCHER_EDIT_H
#define MOTH_LAUNCHER_EDIT_H
#include <signal.h>
#include <stdbool.h>

#include <lua.h>

/* A line without its end, to be freed; NULL at the end of input or, *interrupted, after a signal. \1 and
 * \2 in the prompt stand around what takes no place. */
char *edit_read_line(lua_State *L, const char *prompt, bool *interrupted);

/* A counter of the signals that a line was given up for: the handler's. */
void edit_count_interrupts(volatile sig_atomic_t *count);

/* Lua: start(complete, path): complete(text, start of line) -> list of words that text may become;
 * path: where the history is kept, or nil. add_history(line). stop() writes the history. */
int edit_start(lua_State *L);
int edit_add_history(lua_State *L);
int edit_stop(lua_State *L);
#endif
