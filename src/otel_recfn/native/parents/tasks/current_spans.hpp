// The spans that became current last, without keeping them alive: a file that comes to show the
// program's spans names those around what ran in others, of which no range says anything.
// (support/seen_spans.py)
//
//     references_   | gone | lives | gone | lives | lives |      the newest last
//
//     when it is as long as it may be: what is gone is freed; if that is little, the oldest quarter
//     is forgotten, too; from then on it may be twice as long as what is left, 64 to 4,096
#pragma once
#include <algorithm>
#include <cstddef>

#include "cpython/python.hpp"
#include "cpython/weak_references.hpp"

namespace recfn {

class CurrentSpans {
 public:
  void add(PyObject* span) {
    if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(span))) return;
    PyObject* const reference = PyWeakref_NewRef(span, nullptr);
    if (reference == nullptr) return PyErr_Clear();
    if (count_ > 0 && references_[count_ - 1] == reference) return Py_DECREF(reference);
    if (count_ == sweep_at_) forget();
    references_[count_++] = reference;
  }

  // A list of weak references, the oldest first; they are forgotten here. Null with an error set.
  PyObject* take() {
    Reference taken(PyList_New(0));
    if (!taken) return nullptr;
    for (size_t index = 0; index < count_; ++index) {
      if (PyList_Append(taken.get(), references_[index]) < 0) return nullptr;
    }
    drop(count_);
    return taken.release();
  }

 private:
  // Weak references to spans that are gone are freed soon: some thousands of them, spread over the
  // memory that spans are allocated from, made each span 5% slower.
  static constexpr size_t kSweepAt = 64;
  static constexpr size_t kMaxSpans = 4096;

  // Those that are gone; if nearly all live, the oldest.
  void forget() {
    const auto living = std::stable_partition(references_, references_ + count_,
                                              [](PyObject* one) { return !refers_to_living(one); });
    drop(living - references_);
    if (count_ > kMaxSpans * 3 / 4) drop(kMaxSpans / 4);
    sweep_at_ = std::clamp(2 * count_, kSweepAt, kMaxSpans);
  }

  // So many from the front.
  void drop(size_t number) {
    for (size_t index = 0; index < number; ++index) Py_DECREF(references_[index]);
    count_ = std::copy(references_ + number, references_ + count_, references_) - references_;
  }

  PyObject* references_[kMaxSpans];
  size_t count_ = 0;
  size_t sweep_at_ = kSweepAt;
};

inline CurrentSpans current_spans;

}  // namespace recfn
