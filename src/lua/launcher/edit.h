/* Reading lines: by libedit if it is found and input and output are terminals, else plainly. */
#ifndef MOTH_LAUNCHER_EDIT_H
#define MOTH_LAUNCHER_EDIT_H
#include <signal.h>
#include <stdbool.h>

#include <lua.h>

/* A line without its newline, which the caller frees; NULL at the end of input or, with *interrupted, after a signal.
 * \1 and \2 in the prompt enclose characters of no width. */
char *edit_read_line(lua_State *L, const char *prompt, bool *interrupted);

/* Sets the signal handler's counter of interrupts, which end a line. */
void edit_count_interrupts(volatile sig_atomic_t *count);

/* Lua functions. start(complete, path): complete(text, start of line) -> list of completions of text; path of the
 * history, or nil. add_history(line). stop() writes the history. */
int edit_start(lua_State *L);
int edit_add_history(lua_State *L);
int edit_stop(lua_State *L);
#endif
