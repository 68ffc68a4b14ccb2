// An object of Python's that works without the GIL, for one thread at a time: a second one gets an error and doesn't wait, so that
// a child that is forked meanwhile doesn't wait for ever.
#pragma once
#include "cpython/python.hpp"

namespace recfn {

// Who has it is the only one that uses the object.
class OneUser {
 public:
  // `in_use`: the object's, read and written with the GIL. `type`: what it is called in the error.
  OneUser(bool& in_use, const char* type) : in_use_(in_use), mine_(!in_use) {
    if (mine_) {
      in_use_ = true;
    } else {
      PyErr_Format(PyExc_RuntimeError, "another thread uses this %s at this moment; let one thread at a time use it", type);
    }
  }
  OneUser(const OneUser&) = delete;
  OneUser& operator=(const OneUser&) = delete;
  ~OneUser() {
    if (mine_) in_use_ = false;
  }

  explicit operator bool() const { return mine_; }

 private:
  bool& in_use_;
  const bool mine_;
};

}  // namespace recfn
