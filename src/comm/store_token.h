/* The token of a store that listens on a loopback address, where none was given: drawn by its server, kept in a file
 * that only the user of the process can read, and read by clients of the same user. The file is named by address and
 * port, and lies in $XDG_RUNTIME_DIR/moth, or in /tmp/moth-UID where that is not usable. */
#ifndef MOTH_COMM_STORE_TOKEN_H
#define MOTH_COMM_STORE_TOKEN_H
#include <stdbool.h>
#include <stddef.h>

enum { MOTH_TOKEN_DIGITS = 32, MOTH_TOKEN_FOLDERS = 2 };

typedef struct MothTokenFile {
  char name[96];                     /* of the file: store-ADDRESS-PORT */
  char token[MOTH_TOKEN_DIGITS + 1]; /* "": none */
  char path[512];                    /* where the token was found or kept; "": nowhere */
  char why[640];                     /* what is wrong with a folder or file; "": nothing */
} MothTokenFile;

/* Names the file of this end of a socket, or of the other one. false: the address is none of this machine alone. */
bool moth_token_name(MothTokenFile *t, int fd, bool other_end);
/* Draws a token and writes it, in place of that of an earlier store there. The caller holds the port. false: see why;
 * *unsafe: another user could have a hand in it. */
bool moth_token_keep(MothTokenFile *t, bool *unsafe);
/* Reads the token that the i-th folder (from 0) has. false: it has none, or why says what is wrong with it. */
bool moth_token_read(MothTokenFile *t, int i);
/* Removes the file that was kept. */
void moth_token_remove(MothTokenFile *t);
/* Random bytes of the system; false: it has none. */
bool moth_token_draw(void *bytes, size_t n);
#endif
