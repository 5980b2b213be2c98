/* Expressions of sizes. See expression.h. */
#include "core/expression.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {NULL,  NULL,         "floor", "ceil", "abs", "sqrt", "log",
                                    "exp", "reciprocal", "not",   "add",  "sub", "mul",  "div",
                                    "mod", "pow",        "min",   "max",  "lt",  "le",   "eq"};

MothExprOp moth_expr_op(const char *name) {
  int op = MOTH_EXPR_FLOOR;
  while (op < MOTH_NEXPR && strcmp(names[op], name) != 0)
    op++;
  return (MothExprOp)op;
}

int moth_expr_arity(MothExprOp op) {
  return op <= MOTH_EXPR_DIM ? 0 : op < MOTH_EXPR_ADD ? 1 : 2;
}

static double of_one(MothExprOp op, double a) {
  switch (op) {
  case MOTH_EXPR_FLOOR:
    return floor(a);
  case MOTH_EXPR_CEIL:
    return ceil(a);
  case MOTH_EXPR_ABS:
    return fabs(a);
  case MOTH_EXPR_SQRT:
    return sqrt(a);
  case MOTH_EXPR_LOG:
    return log(a);
  case MOTH_EXPR_EXP:
    return exp(a);
  case MOTH_EXPR_RECIPROCAL:
    return 1 / a;
  default:
    return a == 0;
  }
}

static double of_two(MothExprOp op, double a, double b) {
  switch (op) {
  case MOTH_EXPR_ADD:
    return a + b;
  case MOTH_EXPR_SUB:
    return a - b;
  case MOTH_EXPR_MUL:
    return a * b;
  case MOTH_EXPR_DIV:
    return a / b;
  case MOTH_EXPR_MOD: /* of Lua: it has the sign of b */
    return a - floor(a / b) * b;
  case MOTH_EXPR_POW:
    return pow(a, b);
  case MOTH_EXPR_MIN:
    return a < b ? a : b;
  case MOTH_EXPR_MAX:
    return a > b ? a : b;
  case MOTH_EXPR_LT:
    return a < b;
  case MOTH_EXPR_LE:
    return a <= b;
  default:
    return a == b;
  }
}

double moth_expr_value(const MothExprStep *steps, uint32_t n, const int64_t *dims) {
  double open[MOTH_EXPR_MOST_OPEN];
  int top = -1;
  for (const MothExprStep *s = steps; s < steps + n; s++) {
    MothExprOp op = (MothExprOp)s->op;
    if (moth_expr_arity(op) == 2) {
      top--;
      open[top] = of_two(op, open[top], open[top + 1]);
    } else if (moth_expr_arity(op) == 1) {
      open[top] = of_one(op, open[top]);
    } else {
      open[++top] = op == MOTH_EXPR_DIM ? (double)dims[s->dim] : s->number;
    }
  }
  return open[0];
}
