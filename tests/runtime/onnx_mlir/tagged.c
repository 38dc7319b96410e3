/* A library with one entry point, under the usual name and under one with a tag.
 *
 * As in onnx-mlir's, both call a function that is exported as well: one of another library that
 * is visible to all would be called instead. It reads a file of constants when it is loaded.
 */
#include "om_api.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static float constant = NUMBER;

__attribute__((constructor)) static void read_constants(void) {
  const char *folder = getenv("OM_CONSTANT_PATH");
  char path[4096];
  snprintf(path, sizeof path, "%s%s%s.constants.bin", folder ? folder : "", folder ? "/" : "",
           TEXT(FILE_STEM));
  FILE *file = fopen(path, "rb");
  if (file == NULL)
    return;
  if (fread(&constant, sizeof constant, 1, file) != 1)
    constant = -1;
  fclose(file);
}

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
