/* Which instruction sets the processor has: kernels/cpu/level.c. */
#ifndef MOTH_CPU_LEVEL_H
#define MOTH_CPU_LEVEL_H
#include <stdbool.h>

/* Of MOTH_ISA_*, whatever MOTH_CPU says. */
bool moth_cpu_has(int isa);
#endif
