/* A library of custom ops for onnxruntime with the op tests::Reverse, which reverses the last axis.
   It calls functions of onnxruntime's C API by their index in the table, which never changes. */
#include <stddef.h>
#include <stdint.h>

typedef void *(*Function)();
typedef struct {
    const Function *(*get_api)(uint32_t version);
    const char *(*version)(void);
} ApiBase;

enum {
    CREATE_DOMAIN = 26,
    ADD_OP = 27,
    ADD_DOMAIN = 28,
    TENSOR_DATA = 51,
    DIMENSIONS_COUNT = 61,
    DIMENSIONS = 62,
    TYPE_AND_SHAPE = 65,
    INPUT = 90,
    OUTPUT = 91,
    RELEASE_TYPE_AND_SHAPE = 99,
};
enum { API_VERSION = 13, FLOAT = 1, MAX_RANK = 8 };

static const Function *api;

static void *create(void *op, void *given, void *info) { return op; }
static const char *name(void *op) { return "Reverse"; }
static const char *provider(void *op) { return NULL; }
static int type(void *op, size_t index) { return FLOAT; }
static size_t count(void *op) { return 1; }
static void destroy(void *kernel) {}
static int required(void *op, size_t index) { return 0; }
static int on_cpu(void *op, size_t index) { return 0; }

static void compute(void *kernel, void *context) {
    void *input, *output, *info;
    float *x, *y;
    int64_t dims[MAX_RANK];
    size_t rank;
    api[INPUT](context, (size_t)0, &input);
    api[TYPE_AND_SHAPE](input, &info);
    api[DIMENSIONS_COUNT](info, &rank);
    api[DIMENSIONS](info, dims, rank);
    api[RELEASE_TYPE_AND_SHAPE](info);
    api[OUTPUT](context, (size_t)0, dims, rank, &output);
    api[TENSOR_DATA](input, &x);
    api[TENSOR_DATA](output, &y);
    int64_t rows = 1, size = rank ? dims[rank - 1] : 1;
    for (size_t k = 0; k + 1 < rank; k++) rows *= dims[k];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < size; k++) y[row * size + k] = x[row * size + size - 1 - k];
}

static struct {
    uint32_t version;
    void *(*create)(void *, void *, void *);
    const char *(*name)(void *);
    const char *(*provider)(void *);
    int (*input_type)(void *, size_t);
    size_t (*inputs)(void *);
    int (*output_type)(void *, size_t);
    size_t (*outputs)(void *);
    void (*compute)(void *, void *);
    void (*destroy)(void *);
    int (*input_characteristic)(void *, size_t);
    int (*output_characteristic)(void *, size_t);
    int (*input_memory)(void *, size_t);
} reverse = {API_VERSION, create, name, provider, type, count, type, count, compute, destroy,
                 required, required, on_cpu};

void *RegisterCustomOps(void *options, const ApiBase *base) {
    void *domain, *status;
    api = base->get_api(API_VERSION);
    status = api[CREATE_DOMAIN]("tests", &domain);
    if (!status) status = api[ADD_OP](domain, &reverse);
    if (!status) status = api[ADD_DOMAIN](options, domain);
    return status;
}
