// Python's texts as JSON in UTF-8; support/texts.py says why nothing is escaped that needn't be.
#pragma once
#include "cpython/python.hpp"

#include <string>

namespace recfn {

// A JSON string; or, of a text that is JSON already, the same.
void append_json(std::string& out, PyObject* text, bool is_json);

}  // namespace recfn
