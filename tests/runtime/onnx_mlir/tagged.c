/* A library with one entry point, under the usual name and under one with a tag.
 *
 * As in onnx-mlir's, both call a function that is exported as well: one of another library that
 * is visible to all would be called instead.
 */
#include "om_api.h"

static const float constant = NUMBER;

API OMTensorList *NAMED(main_graph_, TAG)(OMTensorList *given) {
  (void)given;
  OMTensor *made = omTensorCreateEmpty(NULL, 0, FLOAT);
  *(float *)made->aligned = constant;
  return omTensorListCreate(&made, 1);
}
API OMTensorList *main_graph(OMTensorList *given) { return NAMED(main_graph_, TAG)(given); }
API OMTensorList *run_main_graph(OMTensorList *given) { return main_graph(given); }
API OMTensorList *NAMED(run_main_graph_, TAG)(OMTensorList *given) {
  return NAMED(main_graph_, TAG)(given);
}
