/* One line per structured typed kernel: X(name, return type, parameters). Each is a static function
 * of that name in one of the files of this folder. */
#ifndef MOTH_CPU_TYPED_MEMBERS_H
#define MOTH_CPU_TYPED_MEMBERS_H

#include "kernels/cpu/typed/list.h"

#define MOTH_X(name, ret, ...) ret (*name)(__VA_ARGS__);
#define MOTH_TYPED_MEMBERS     MOTH_TYPED_LIST(MOTH_X)
#endif
