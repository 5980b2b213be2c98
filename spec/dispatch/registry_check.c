/* Ops by name, from C and C++: prints how many of its arguments are ops that moth_op_find finds. */
#include <moth.h>
#include <moth_ops.h>
#include <stdio.h>
#ifndef OP
#define OP mul
#endif
#define EXPANDED(name) MOTH_OP(name)

int main(int argc, char **argv) {
  int n = 0;
  if (EXPANDED(OP) != moth_op_find("mul") || MOTH_OP(relu) == MOTH_OP(mul) || moth_op_find(NULL))
    return 1;
  for (int i = 1; i < argc; i++)
    n += moth_op_find(argv[i]) != NULL;
  printf("%d\n", n);
  return 0;
}
