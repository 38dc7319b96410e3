/* A library as onnx-mlir makes one, by hand: one entry point for each thing that can happen. */
#include "om_api.h"

#define ONE(name) API OMTensorList *run_##name(OMTensorList *given)
#define TENSOR(type, dims, name) "{\"type\":\"" type "\",\"dims\":[" dims "],\"name\":\"" name "\"}"

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

/* onnx-mlir writes types that it has no name for without quotes. */
#define TYPES(X)                                                                                   \
  X(float32, "\"f32\"") X(uint8, "\"ui8\"") X(int8, "\"i8\"") X(uint16, "\"ui16\"")                \
  X(int16, "\"i16\"") X(int32, "\"i32\"") X(int64, "\"i64\"") X(bool_, "\"i1\"")                   \
  X(float16, "\"f16\"") X(float64, "\"f64\"") X(uint32, "\"ui32\"") X(uint64, "\"ui64\"")          \
  X(complex64, "complex<f32>") X(complex128, "complex<f64>") X(bfloat16, "\"bf16\"")               \
  X(float8_e4m3fn, "f8E4M3FN") X(float8_e4m3fnuz, "f8E4M3FNUZ") X(float8_e5m2, "f8E5M2")           \
  X(uint4, "ui4") X(int4, "i4")
#define ECHO(name, type)                                                                           \
  ONE(echo_##name) { return echo(given); }
TYPES(ECHO)

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

static const Entry entries[] = {
    {"run_arithmetic", "[" TENSOR("f32", "-1,3", "x") "," TENSOR("f32", "-1,3", "y") "]",
     "[" TENSOR("f32", "-1,3", "sum") "," TENSOR("i1", "-1,3", "larger") ","
     TENSOR("i64", "", "rows") "]"},
#define ECHO_ENTRY(name, type)                                                                     \
  {"run_echo_" #name, "[   { \"type\" : " type " , \"dims\" : [-1 , -1] , \"name\" : \"x\" }\n\n]",\
   "[   { \"type\" : " type " , \"dims\" : [-1 , -1] , \"name\" : \"y\" }\n\n]"},
    TYPES(ECHO_ENTRY)
#define FLOATS(name)                                                                               \
  {"run_" #name, "[" TENSOR("f32", "-1,-1", "x") "]", "[" TENSOR("f32", "-1,-1", "y") "]"},
    FLOATS(twins) FLOATS(argument) FLOATS(claimed) FLOATS(columns) FLOATS(backwards)
    FLOATS(refusal) FLOATS(silence) FLOATS(riddle)
    {"run_constant", "[]", "[" TENSOR("f32", "2,2", "y") "]"},
    {"run_aligned", "[]", "[" TENSOR("i32", "3", "y") "]"},
    {"run_empty", "[]", "[" TENSOR("f32", "0,3", "y") "]"},
    {"run_crash", "[]", "[]"},
    {"run_strings", "[" TENSOR("string", "-1", "x") "]", "[]"},
    {"run_sequences", "[{\"seq\" : " TENSOR("f32", "-1", "x") "}]", "[]"},
    {"run_nonsense", "[{]", "[]"},
    {"run_nowhere", "[]", "[]"},
    {0}};
DESCRIBE(entries, )
