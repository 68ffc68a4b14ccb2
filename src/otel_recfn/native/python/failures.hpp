// What the exception says that a range is left by.
#pragma once
#include "cpython/calls_without_dynamo.hpp"
#include "cpython/python.hpp"
#include "python/arguments.hpp"
#include "python/record_function.hpp"

namespace recfn {

// As RecorderHooks has them.
uint32_t handled_exception();
void end_failed(ThreadBuffer& buffer, const FailedEnd& failed);

// Calls `end` with the exception's text and its stack trace (null where there is no memory for
// any). False, with the error set, when the program was interrupted meanwhile (KeyboardInterrupt);
// the range ends all the same.
template <typename End>
[[gnu::noinline]] bool end_with_error(PyObject* exception, End end) {
  PyObject* result = call_without_dynamo(record_function_helpers.failure, &exception, 1);
  const Reference raised(take_raised());
  // Where the helper fails its error is taken, and the type's name stands for the text.
  if (result == nullptr) result = Py_BuildValue("ss", Py_TYPE(exception)->tp_name, "");
  const Reference texts(result);
  const bool has_texts = texts.get() != nullptr;
  if (!has_texts) PyErr_Clear();
  if (!end(has_texts ? PyTuple_GET_ITEM(texts.get(), 0) : nullptr,
           has_texts ? PyTuple_GET_ITEM(texts.get(), 1) : nullptr)) {
    return false;
  }
  if (!raised || PyErr_GivenExceptionMatches(raised.get(), PyExc_Exception) != 0) return true;
  raise_again(Py_NewRef(raised.get()));
  return false;
}

}  // namespace recfn
