// The upper halves of x86's vector registers, which igzip's assembly leaves in use.
//
// As long as they are, each SSE instruction of the thread has to merge its result into them, and so waits for whatever wrote them
// last. Compilers clear them where they have used them. Without that, a thread that had once compressed a few bytes took 2.7
// times as long for each of PyTorch's small operators from then on: the program's own, where it had asked for a trace.
#include "cpython/parts.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

#if defined(__x86_64__)
[[gnu::target("avx")]] void zero_upper() { _mm256_zeroupper(); }

PyObject* zero_upper_vectors(PyObject*, PyObject*) {
  if (__builtin_cpu_supports("avx")) zero_upper();
  Py_RETURN_NONE;
}
#else
PyObject* zero_upper_vectors(PyObject*, PyObject*) { Py_RETURN_NONE; }
#endif

PyMethodDef vector_functions[] = {{"zero_upper_vectors", zero_upper_vectors, METH_NOARGS,
                            "zero_upper_vectors() -> None\n\nClear the upper halves of this thread's vector registers."},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

int recfn::add_vector_state(PyObject* module) { return PyModule_AddFunctions(module, vector_functions); }
