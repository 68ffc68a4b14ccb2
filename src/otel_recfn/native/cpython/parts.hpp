// What the rooms add to the extension module: functions and types. Each returns 0, or -1 with a Python error set.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

int add_recorder(PyObject* module);
int add_drain(PyObject* module);
int add_ranges(PyObject* module);
int add_record_function_type(PyObject* module);
int add_call_tracer(PyObject* module);
int add_chrome_encoder(PyObject* module);
int add_otlp_encoder(PyObject* module);
int add_metrics(PyObject* module);
int add_vector_state(PyObject* module);

}  // namespace recfn
