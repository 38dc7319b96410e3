/* The C API that a library made by onnx-mlir exports, for tests of those who call it.
 *
 * The names, the types and who owns what are as its headers document them. Everything is counted:
 * tensors, lists and buffers that are alive, and buffers that somebody frees who must not.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

typedef struct {
  void *allocated;
  void *aligned;
  int64_t offset;
  int64_t *shape;
  int64_t *strides;
  int64_t rank;
  int type;
  int64_t owning;
} OMTensor;

typedef struct {
  OMTensor **tensors;
  int64_t size;
  bool shallow;
} OMTensorList;

enum { FLOAT = 1, INT32 = 6, INT64 = 7, BOOL = 9 };

/* What tests read: alive now, and buffers freed twice or without being the library's. */
API int64_t test_tensors, test_lists, test_buffers, test_wrong_frees;
/* What tests set: the so many-th creation from now on fails; 0 for none. */
API int64_t test_fail_at;

#define MOST_BUFFERS 4096
static void *known_buffers[MOST_BUFFERS];

static void count(int64_t *counter, int64_t change) {
  __atomic_add_fetch(counter, change, __ATOMIC_SEQ_CST);
}

/* Puts a pointer in the place of another, in the first place that holds the other. */
static bool exchange(void *old, void *new) {
  for (int k = 0; k < MOST_BUFFERS; k++) {
    void *expected = old;
    if (__atomic_compare_exchange_n(
            &known_buffers[k], &expected, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      return true;
  }
  return false;
}

static bool fails(void) { return test_fail_at > 0 && --test_fail_at == 0; }

/* A buffer that a tensor can own. */
static void *new_buffer(size_t bytes) {
  void *memory = malloc(bytes ? bytes : 1);
  if (!exchange(NULL, memory))
    abort();
  count(&test_buffers, 1);
  return memory;
}

static void free_buffer(void *memory) {
  if (memory == NULL || !exchange(memory, NULL)) {
    count(&test_wrong_frees, 1);
    return;
  }
  count(&test_buffers, -1);
  free(memory);
}

static const int sizes[] = {0, 4, 1, 1, 2, 2, 4, 8, 8, 1, 2, 8, 4, 8, 8, 16, 2, 1, 1, 1, 1, 1};

API OMTensor *omTensorCreateWithOwnership(
    void *data, const int64_t *shape, int64_t rank, int type, int64_t owning) {
  if (fails())
    return NULL;
  OMTensor *tensor = calloc(1, sizeof *tensor);
  tensor->allocated = tensor->aligned = data;
  tensor->shape = calloc(rank ? rank : 1, sizeof(int64_t));
  tensor->strides = calloc(rank ? rank : 1, sizeof(int64_t));
  tensor->rank = rank;
  tensor->type = type;
  tensor->owning = owning;
  int64_t step = 1;
  for (int64_t k = rank - 1; k >= 0; k--) {
    tensor->shape[k] = shape[k];
    tensor->strides[k] = step;
    step *= shape[k];
  }
  count(&test_tensors, 1);
  return tensor;
}

API OMTensor *omTensorCreate(void *data, const int64_t *shape, int64_t rank, int type) {
  return omTensorCreateWithOwnership(data, shape, rank, type, 0);
}

API int64_t omTensorGetNumElems(const OMTensor *tensor) {
  int64_t count = 1;
  for (int64_t k = 0; k < tensor->rank; k++)
    count *= tensor->shape[k];
  return count;
}

API int64_t omTensorGetBufferSize(const OMTensor *tensor) {
  return omTensorGetNumElems(tensor) * sizes[tensor->type];
}

API OMTensor *omTensorCreateEmpty(const int64_t *shape, int64_t rank, int type) {
  OMTensor *tensor = omTensorCreateWithOwnership(NULL, shape, rank, type, 1);
  tensor->allocated = tensor->aligned = new_buffer(omTensorGetBufferSize(tensor));
  return tensor;
}

API void omTensorDestroy(OMTensor *tensor) {
  if (tensor == NULL)
    return;
  if (tensor->owning)
    free_buffer(tensor->allocated);
  free(tensor->shape);
  free(tensor->strides);
  free(tensor);
  count(&test_tensors, -1);
}

API void *omTensorGetDataPtr(const OMTensor *tensor) { return tensor->aligned; }
API void *omTensorGetAllocatedPtr(const OMTensor *tensor) { return tensor->allocated; }
API const int64_t *omTensorGetShape(const OMTensor *tensor) { return tensor->shape; }
API const int64_t *omTensorGetStrides(const OMTensor *tensor) { return tensor->strides; }
API int64_t omTensorGetRank(const OMTensor *tensor) { return tensor->rank; }
API int omTensorGetDataType(const OMTensor *tensor) { return tensor->type; }
API int64_t omTensorGetOwning(const OMTensor *tensor) { return tensor->owning; }
API void omTensorSetOwning(OMTensor *tensor, int64_t owning) { tensor->owning = owning; }

API OMTensorList *omTensorListCreate(OMTensor **tensors, int64_t size) {
  if (fails())
    return NULL;
  OMTensorList *list = calloc(1, sizeof *list);
  list->size = size;
  if (size) {
    list->tensors = calloc(size, sizeof *tensors);
    memcpy(list->tensors, tensors, size * sizeof *tensors);
  }
  count(&test_lists, 1);
  return list;
}

API void omTensorListDestroyShallow(OMTensorList *list) {
  if (list == NULL)
    return;
  free(list->tensors);
  free(list);
  count(&test_lists, -1);
}

API void omTensorListDestroy(OMTensorList *list) {
  if (list == NULL)
    return;
  for (int64_t k = 0; k < list->size; k++)
    omTensorDestroy(list->tensors[k]);
  omTensorListDestroyShallow(list);
}

API int64_t omTensorListGetSize(const OMTensorList *list) { return list->size; }
API OMTensor **omTensorListGetOmtArray(const OMTensorList *list) { return list->tensors; }
API OMTensor *omTensorListGetOmtByIndex(const OMTensorList *list, int64_t index) {
  return index >= 0 && index < list->size ? list->tensors[index] : NULL;
}

#define JOINED(a, b) a##b
#define NAMED(a, b) JOINED(a, b)
