#include "calls/code_names.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace recfn {

RecentNames recent_names;

namespace {

#if PY_VERSION_HEX >= 0x030C0000
const auto request_index = PyUnstable_Eval_RequestCodeExtraIndex;
const auto get_extra = PyUnstable_Code_GetExtra;
const auto set_extra = PyUnstable_Code_SetExtra;
#else
const auto request_index = _PyEval_RequestCodeExtraIndex;
const auto get_extra = _PyCode_GetExtra;
const auto set_extra = _PyCode_SetExtra;
#endif

// A call begins at the first instruction, a generator's also where it was suspended.
struct Entry {
  int instruction;
  CallName* name;
};

struct NamesOfCode {
  PyObject* code;    // which they go with
  uint64_t version;  // whose names they are
  Entry first;
  std::vector<Entry> others;  // by instruction: a long function may call from thousands
};

Py_ssize_t place = -1;

// Where that instruction's is, or would be.
std::vector<Entry>::const_iterator place_among(const std::vector<Entry>& entries, int instruction) {
  const auto is_before = [](const Entry& entry, int other) { return entry.instruction < other; };
  return std::lower_bound(entries.begin(), entries.end(), instruction, is_before);
}

void free_name(const PyObject* code, const Entry& entry) {
  if (entry.name == nullptr) return;
  recent_names.remove(code, entry.instruction);
  Py_XDECREF(entry.name->of_frame);
  delete entry.name;
}

void clear(NamesOfCode& names) {
  free_name(names.code, names.first);
  names.first.name = nullptr;
  for (const Entry& entry : names.others) free_name(names.code, entry);
  names.others.clear();
}

void free_names(void* kept) {
  auto* names = static_cast<NamesOfCode*>(kept);
  if (names == nullptr) return;
  clear(*names);
  delete names;
}

NamesOfCode* names_of(PyObject* code) {
  void* kept = nullptr;
  get_extra(code, place, &kept);
  return static_cast<NamesOfCode*>(kept);
}

NamesOfCode* new_names(PyObject* code, uint64_t version) {
  auto* names = new NamesOfCode{code, version, {-1, nullptr}, {}};
  if (set_extra(code, place, names) == 0) return names;
  PyErr_Clear();
  delete names;
  return nullptr;
}

}  // namespace

bool CodeNames::prepare() {
  if (place < 0) place = request_index(free_names);
  return place >= 0;
}

const CallName* CodeNames::find(PyObject* code, int instruction, uint64_t version) {
  const NamesOfCode* names = names_of(code);
  if (names == nullptr || names->version != version) return nullptr;
  if (names->first.instruction == instruction) return names->first.name;
  const auto at = place_among(names->others, instruction);
  return at != names->others.end() && at->instruction == instruction ? at->name : nullptr;
}

const CallName* CodeNames::keep(PyObject* code, int instruction, uint64_t version, CallName name) {
  NamesOfCode* names = names_of(code);
  if (names == nullptr) names = new_names(code, version);
  if (names == nullptr) return nullptr;
  if (names->version != version) clear(*names), names->version = version;
  auto kept = std::make_unique<CallName>(std::move(name));
  if (names->first.name == nullptr) {
    names->first = {instruction, kept.get()};
  } else {
    names->others.insert(place_among(names->others, instruction), {instruction, kept.get()});
  }
  return kept.release();
}

}  // namespace recfn
