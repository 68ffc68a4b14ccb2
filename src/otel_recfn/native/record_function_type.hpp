// `record_function` as a C type: entering and leaving it is the recording hot path of Python programs.
#pragma once
#include "module.hpp"

namespace recfn {

// EventSource of model/events.py.
constexpr unsigned kTorchSource = 0, kRecordFunctionSource = 1, kModuleSource = 2;
constexpr unsigned kUserScope = 7;  // RecordScope.USER_SCOPE

int add_record_function_type(PyObject* module);

}  // namespace recfn
