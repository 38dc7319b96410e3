/* A library as onnx-mlir makes one, by hand: one entry point for each thing that can happen. */
#include "om_api.h"

#define ONE(name) API OMTensorList *run_##name(OMTensorList *given)
static OMTensorList *list_of(OMTensor *tensor) { return omTensorListCreate(&tensor, 1); }

/* x, y: float[?, 3] -> their sum: float[?, 3]; which is larger: bool[?, 3]; the rows: int64 */
ONE(arithmetic) {
  OMTensor *x = given->tensors[0], *y = given->tensors[1];
  OMTensor *made[] = {omTensorCreateEmpty(x->shape, 2, FLOAT),
                      omTensorCreateEmpty(x->shape, 2, BOOL),
                      omTensorCreateEmpty(NULL, 0, INT64)};
  const float *a = x->aligned, *b = y->aligned;
  for (int64_t k = 0; k < omTensorGetNumElems(x); k++) {
    ((float *)made[0]->aligned)[k] = a[k] + b[k];
    ((bool *)made[1]->aligned)[k] = a[k] > b[k];
  }
  *(int64_t *)made[2]->aligned = x->shape[0];
  return omTensorListCreate(made, 3);
}

/* What it is given, in new memory, whatever its type. */
static OMTensorList *echo(OMTensorList *given) {
  OMTensor *x = given->tensors[0];
  OMTensor *made = omTensorCreateEmpty(x->shape, x->rank, x->type);
  memcpy(made->aligned, x->aligned, omTensorGetBufferSize(x));
  return list_of(made);
}

ONE(echo) { return echo(given); }

/* The same memory twice, and both tensors say that they own it. */
ONE(twins) {
  OMTensorList *once = echo(given);
  OMTensor *first = once->tensors[0];
  int64_t flat = omTensorGetNumElems(first);
  OMTensor *made[] = {first, omTensorCreateWithOwnership(first->allocated, &flat, 1, FLOAT, 1)};
  omTensorListDestroyShallow(once);
  return omTensorListCreate(made, 2);
}

/* Memory of the library, which nobody may free. */
ONE(constant) {
  static float weights[4] = {1, 2, 3, 4};
  int64_t shape[] = {2, 2};
  return list_of(omTensorCreateWithOwnership(weights, shape, 2, FLOAT, 0));
}

/* The input itself; and the input itself with the claim to own it. */
ONE(argument) {
  OMTensor *x = given->tensors[0];
  return list_of(omTensorCreateWithOwnership(x->aligned, x->shape, x->rank, x->type, 0));
}
ONE(claimed) {
  OMTensor *x = given->tensors[0];
  return list_of(omTensorCreateWithOwnership(x->aligned, x->shape, x->rank, x->type, 1));
}

/* Memory that does not begin where it was allocated; and columns instead of rows. */
ONE(aligned) {
  int64_t shape[] = {3};
  OMTensor *made = omTensorCreateEmpty(shape, 1, INT32);
  free_buffer(made->allocated);
  made->allocated = new_buffer(64);
  made->aligned = (char *)made->allocated + 16;
  memcpy(made->aligned, (int32_t[]){7, 8, 9}, 12);
  return list_of(made);
}
ONE(columns) {
  OMTensorList *list = echo(given);
  OMTensor *made = list->tensors[0];
  made->strides[0] = 1;
  made->strides[1] = made->shape[0];
  return list;
}
ONE(backwards) {
  OMTensorList *list = echo(given);
  list->tensors[0]->strides[0] = -1;
  return list;
}

ONE(empty) {
  int64_t shape[] = {0, 3};
  return list_of(omTensorCreateEmpty(shape, 2, FLOAT));
}

ONE(refusal) {
  errno = EINVAL;
  return NULL;
}
ONE(silence) { return NULL; }
ONE(riddle) {
  OMTensorList *list = echo(given);
  list->tensors[0]->type = 8;
  return list;
}
ONE(crash) { abort(); }
