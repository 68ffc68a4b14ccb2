// Who sees the ranges of `record_function` instead of the recorder, and which ranges it leaves to the recorder all the same.
#pragma once
#include "cpython/python.hpp"
#include "python/record_function_object.hpp"

namespace recfn {

// Whether the calling thread's next range, which is begun now, is one that the observer said it doesn't want.
bool begins_unobserved();

// Hands a range to the observer, which must be set. Returns its handle, or null with the exception set.
PyObject* observe_range(const RecordFunctionObject& range);

}  // namespace recfn
