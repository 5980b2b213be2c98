/* Shared by pickle*.c: the machine that runs a pickle. Errors of all functions name the byte that the machine
 * has reached. */
#ifndef MOTH_IO_PICKLE_MACHINE_H
#define MOTH_IO_PICKLE_MACHINE_H
#include "io/pickle.h"

typedef struct MothPickleMachine {
  const uint8_t *bytes, *at, *end;
  int64_t budget; /* bytes of arrays that may still be made */
  bool records;   /* the names of a checkpoint's index are known, those of tensors are not */
  MothPickleValue *stack, *memo;
  uint32_t stack_count, memo_count, mark; /* mark: index above the last MARK; 0: there is none */
  uint32_t stack_room, memo_room, cell_room, container_room, storage_room, tensor_room, dim_room;
  MothPickle *out;
} MothPickleMachine;

/* The stack and the arrays of the result (pickle.c). */
MothStatus moth_pickle_damaged(const MothPickleMachine *m, const char *what);
/* Grows an array of `count` items of `item` bytes for `more` of them, within the budget; *capacity is set. */
MothStatus moth_pickle_reserve(MothPickleMachine *m, void *array_pointer, uint32_t count,
                               uint32_t *capacity, uint32_t more, size_t item);
MothStatus moth_pickle_push(MothPickleMachine *m, MothPickleValue value);
MothStatus moth_pickle_pop(MothPickleMachine *m, MothPickleValue *out);
/* The topmost item above the last MARK, or NULL. */
const MothPickleValue *moth_pickle_top(const MothPickleMachine *m);
MothStatus moth_pickle_new_container(MothPickleMachine *m, MothPickleKind kind,
                                     MothPickleValue *out);

/* Appends the topmost `count` values to a container. */
MothStatus moth_pickle_take(MothPickleMachine *m, uint32_t container, uint32_t count);
/* Copies the cells of a container, behind those of another of any kind. */
MothStatus moth_pickle_copy_cells(MothPickleMachine *m, uint32_t to, uint32_t from, bool numbered);

/* Names and calls (pickle_torch.c): GLOBAL, BINPERSID, REDUCE, NEWOBJ, BUILD. */
MothStatus moth_pickle_push_name(MothPickleMachine *m, const char *module, size_t module_n,
                                 const char *name, size_t name_n);
MothStatus moth_pickle_load_storage(MothPickleMachine *m);
MothStatus moth_pickle_reduce(MothPickleMachine *m);
MothStatus moth_pickle_new_object(MothPickleMachine *m);
MothStatus moth_pickle_build(MothPickleMachine *m);

/* Checks of the whole result (pickle_check.c). height: workspace, a zero for each container. */
MothStatus moth_pickle_check_tree(const MothPickleMachine *m, uint8_t *height);
MothStatus moth_pickle_join_storages(MothPickleMachine *m);
#endif
