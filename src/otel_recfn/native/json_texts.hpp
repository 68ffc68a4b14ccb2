// Python's texts as ASCII JSON.
#pragma once
#include "module.hpp"

#include <string>

namespace recfn {

// A JSON string; or, of a text that is JSON already, the same with what is not ASCII escaped.
void append_json(std::string& out, PyObject* text, bool is_json);

}  // namespace recfn
