/* fold(target, source, weight): target[i] ^= weight * source[i] in GF(256), for all bytes of two buffers of one length.

Why        Parity of two rows multiplies each byte of the state by a constant. numpy can only look each product up in a
           table, which is slower than the goal by a factor (benchmarks/parity.py measures both). The processor multiplies
           32 bytes at once: a product is the XOR of the products of the two halves of a byte, and each half has 16 values,
           which fit into one register that PSHUFB indexes (Plank, Greenan, Miller, FAST 2013).
Where      x86-64 with AVX2, which is looked for when the module is imported. Elsewhere, and with -DPORTABLE, a table of
           256 products is used. Building this file is optional: parity.py does without.
Promises   The field is that of x^8 + x^4 + x^3 + x^2 + 1 (0x11d). Buffers must not overlap. The interpreter lock is
           released meanwhile. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(PORTABLE)
#include <immintrin.h>
#define HAS_AVX2_PATH 1
#else
#define HAS_AVX2_PATH 0
#endif

enum { VALUES = 256, HALF = 16, POLYNOMIAL = 0x11d };

static int uses_avx2; /* set once, when the module is imported */

static uint8_t product(unsigned a, unsigned b)
{
    unsigned sum = 0;
    for (; b; b >>= 1) {
        if (b & 1)
            sum ^= a;
        a <<= 1;
        if (a & VALUES)
            a ^= POLYNOMIAL;
    }
    return (uint8_t)sum;
}

static void add(uint8_t *restrict target, const uint8_t *restrict source, size_t length)
{
    for (size_t at = 0; at < length; at++) /* the compiler makes vectors of it */
        target[at] ^= source[at];
}

static void add_product(uint8_t *restrict target, const uint8_t *restrict source, size_t length, unsigned weight)
{
    uint8_t table[VALUES];
    for (unsigned value = 0; value < VALUES; value++)
        table[value] = product(value, weight);
    for (size_t at = 0; at < length; at++)
        target[at] ^= table[source[at]];
}

#if HAS_AVX2_PATH
__attribute__((target("avx2"))) static void add_avx2(uint8_t *restrict target, const uint8_t *restrict source, size_t length)
{
    size_t at = 0;
    for (; at + 64 <= length; at += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(source + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(source + at + 32));
        a = _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i *)(target + at)));
        b = _mm256_xor_si256(b, _mm256_loadu_si256((const __m256i *)(target + at + 32)));
        _mm256_storeu_si256((__m256i *)(target + at), a);
        _mm256_storeu_si256((__m256i *)(target + at + 32), b);
    }
    add(target + at, source + at, length - at);
}

__attribute__((target("avx2"))) static void add_product_avx2(uint8_t *restrict target, const uint8_t *restrict source,
                                                             size_t length, unsigned weight)
{
    uint8_t low[HALF], high[HALF];
    for (unsigned value = 0; value < HALF; value++) {
        low[value] = product(value, weight);
        high[value] = product(value << 4, weight);
    }
    const __m256i of_low = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)low));
    const __m256i of_high = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)high));
    const __m256i half = _mm256_set1_epi8(0x0f);
    size_t at = 0;
    for (; at + 32 <= length; at += 32) {
        __m256i bytes = _mm256_loadu_si256((const __m256i *)(source + at));
        __m256i left = _mm256_shuffle_epi8(of_low, _mm256_and_si256(bytes, half));
        __m256i right = _mm256_shuffle_epi8(of_high, _mm256_and_si256(_mm256_srli_epi64(bytes, 4), half));
        __m256i sum = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(target + at)), _mm256_xor_si256(left, right));
        _mm256_storeu_si256((__m256i *)(target + at), sum);
    }
    add_product(target + at, source + at, length - at, weight);
}
#endif

static void fold(uint8_t *target, const uint8_t *source, size_t length, unsigned weight)
{
    if (weight == 0)
        return;
#if HAS_AVX2_PATH
    if (uses_avx2) {
        if (weight == 1)
            add_avx2(target, source, length);
        else
            add_product_avx2(target, source, length, weight);
        return;
    }
#endif
    if (weight == 1)
        add(target, source, length);
    else
        add_product(target, source, length, weight);
}

static PyObject *parity_fold(PyObject *module, PyObject *args)
{
    Py_buffer target, source;
    int weight;
    if (!PyArg_ParseTuple(args, "w*y*i:fold", &target, &source, &weight))
        return NULL;
    int fits = target.len == source.len, is_in_field = 0 <= weight && weight < VALUES;
    if (!fits)
        PyErr_Format(PyExc_ValueError, "the target has %zd bytes, the source %zd", target.len, source.len);
    else if (!is_in_field)
        PyErr_Format(PyExc_ValueError, "the weight is %d, and must be 0 to 255", weight);
    if (fits && is_in_field) {
        Py_BEGIN_ALLOW_THREADS
        fold(target.buf, source.buf, (size_t)target.len, (unsigned)weight);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&target);
    if (!fits || !is_in_field)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"fold", parity_fold, METH_VARARGS, "fold(target, source, weight): add weight times source to target, in GF(256)."},
    {NULL, NULL, 0, NULL},
};

static int begin(PyObject *module)
{
#if HAS_AVX2_PATH
    __builtin_cpu_init();
    uses_avx2 = __builtin_cpu_supports("avx2") != 0;
#endif
    return PyModule_AddIntConstant(module, "AVX2", uses_avx2);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)begin}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_parity", .m_size = 0, .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__parity(void)
{
    return PyModuleDef_Init(&definition);
}
