/* copy(target, source): the bytes of one buffer into another of the same length, past the caches.

Why        A snapshot is written once and hardly ever read. Ordinary stores read each line of the target before they overwrite
           it, and push the model out of the caches; streaming stores do neither. That is worth more than the checksum costs
           (benchmarks/stall.py), and Python cannot say it.
Where      x86-64. Elsewhere it is memcpy. Building it is optional: streaming.py does without.
Promises   When it returns, all is written and visible to other processors. Buffers must not overlap. The interpreter
           lock is released meanwhile. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

enum { LINE_BYTES = 64 };

static void copy_past_caches(char *target, const char *source, size_t length)
{
    size_t head = (size_t)(-(uintptr_t)target & (LINE_BYTES - 1)); /* whole lines only: half a line would have to be read */
    if (head > length)
        head = length;
    memcpy(target, source, head);
    target += head, source += head, length -= head;

    for (; length >= LINE_BYTES; target += LINE_BYTES, source += LINE_BYTES, length -= LINE_BYTES) {
        __m128i a = _mm_loadu_si128((const __m128i *)source);
        __m128i b = _mm_loadu_si128((const __m128i *)(source + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(source + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(source + 48));
        _mm_stream_si128((__m128i *)target, a);
        _mm_stream_si128((__m128i *)(target + 16), b);
        _mm_stream_si128((__m128i *)(target + 32), c);
        _mm_stream_si128((__m128i *)(target + 48), d);
    }
    memcpy(target, source, length);
    _mm_sfence(); /* streaming stores are not ordered by themselves; the seal comes after them */
}
#else
static void copy_past_caches(char *target, const char *source, size_t length)
{
    memcpy(target, source, length);
}
#endif

static PyObject *stream_copy(PyObject *module, PyObject *args)
{
    Py_buffer target, source;
    if (!PyArg_ParseTuple(args, "w*y*:copy", &target, &source))
        return NULL;
    int fits = target.len == source.len;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        copy_past_caches(target.buf, source.buf, (size_t)target.len);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_Format(PyExc_ValueError, "the target has %zd bytes, the source %zd", target.len, source.len);
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&target);
    if (!fits)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"copy", stream_copy, METH_VARARGS, "copy(target, source): all bytes of source into target, of the same length, past the caches."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_stream", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__stream(void)
{
    return PyModuleDef_Init(&definition);
}
