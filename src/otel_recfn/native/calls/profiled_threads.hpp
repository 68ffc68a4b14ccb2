// Sets and takes away the profile function of threads, of any that Python knows.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Whether this CPython lets us set the profile function of other threads than the calling one.
bool reaches_other_threads();

// Sets it in every thread that has none. Returns how many have another one and keep it; -1 with the error set.
Py_ssize_t profile_threads(Py_tracefunc function);

// Takes it away from the calling thread, where others can't.
void unprofile_this_thread();

// Takes it away wherever it is set.
void unprofile_threads(Py_tracefunc function);

}  // namespace recfn
