/* Expressions of sizes, as lua/moth/compile/sizes.lua computes them: numbers, dims and operations on what stands before them.
 * Nothing is allocated. */
#ifndef MOTH_CORE_EXPRESSION_H
#define MOTH_CORE_EXPRESSION_H
#include <stdbool.h>
#include <stdint.h>

enum { MOTH_EXPR_MOST_STEPS = 1024, MOTH_EXPR_MOST_OPEN = 64 };

typedef enum MothExprOp {
  MOTH_EXPR_NUMBER,
  MOTH_EXPR_DIM,
  MOTH_EXPR_FLOOR, /* of one operand */
  MOTH_EXPR_CEIL,
  MOTH_EXPR_ABS,
  MOTH_EXPR_SQRT,
  MOTH_EXPR_LOG,
  MOTH_EXPR_EXP,
  MOTH_EXPR_RECIPROCAL,
  MOTH_EXPR_NOT,
  MOTH_EXPR_ADD, /* of two */
  MOTH_EXPR_SUB,
  MOTH_EXPR_MUL,
  MOTH_EXPR_DIV,
  MOTH_EXPR_MOD,
  MOTH_EXPR_POW,
  MOTH_EXPR_MIN,
  MOTH_EXPR_MAX,
  MOTH_EXPR_LT,
  MOTH_EXPR_LE,
  MOTH_EXPR_EQ,
  MOTH_NEXPR
} MothExprOp;

typedef struct MothExprStep {
  uint8_t op;
  int32_t dim;
  double number;
} MothExprStep;

/* The operation with a name ("add"); MOTH_NEXPR: there is none. */
MothExprOp moth_expr_op(const char *name);
/* How many operands an operation takes: 0, 1 or 2. */
int moth_expr_arity(MothExprOp op);
/* The value. At no step more than MOTH_EXPR_MOST_OPEN values are open, and one is at the end. */
double moth_expr_value(const MothExprStep *steps, uint32_t n, const int64_t *dims);
#endif
