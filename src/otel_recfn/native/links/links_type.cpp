// `ForwardRanges`: what backward ranges may belong to, behind an object of Python's. What takes long is done without the GIL.
#include "links/links_type.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "columns/column_tuple.hpp"
#include "columns/column_view.hpp"
#include "columns/ordered.hpp"
#include "cpython/gil.hpp"
#include "cpython/guarded.hpp"
#include "cpython/one_user.hpp"
#include "links/forward_ranges.hpp"
#include "links/link_rows.hpp"

namespace recfn {
namespace {

constexpr Py_ssize_t kManyRows = 10'000;  // which take some 0.1 ms
constexpr Py_ssize_t kAllRanges = -1;     // as many as are remembered

struct ForwardRangesObject {
  PyObject_HEAD
  bool in_use;  // read and written with the GIL
  ForwardRanges<ForwardRange> ranges;
};

ForwardRanges<ForwardRange>& ranges_of(PyObject* self) { return reinterpret_cast<ForwardRangesObject*>(self)->ranges; }

// The work on what is remembered and on so many rows, for one thread at a time. False with an error set where another one is at
// it, or memory is short.
template <typename Work>
bool done_alone(PyObject* self, Py_ssize_t rows, Work work) {
  ForwardRanges<ForwardRange>& ranges = ranges_of(self);
  const OneUser user(reinterpret_cast<ForwardRangesObject*>(self)->in_use, "ForwardRanges");
  if (!user) return false;
  const bool many = rows == kAllRanges ? ranges.size() > size_t{kManyRows} : rows > kManyRows;
  return without_gil_if(many, [&] { work(ranges); });
}

Py_ssize_t length(PyObject* self) { return static_cast<Py_ssize_t>(ranges_of(self).size()); }

PyObject* ranges_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) new (&ranges_of(self)) ForwardRanges<ForwardRange>();
  return self;
}

void ranges_dealloc(PyObject* self) {
  ranges_of(self).~ForwardRanges<ForwardRange>();
  Py_TYPE(self)->tp_free(self);
}

PyObject* index_error() {
  PyErr_SetString(PyExc_IndexError, "a row indexes nothing; its track and thread have to be known");
  return nullptr;
}

PyObject* used_in(PyObject*, PyObject* arguments) {
  PyObject* batch;
  Py_ssize_t tracks;
  if (!PyArg_ParseTuple(arguments, "On:used_in", &batch, &tracks)) return nullptr;
  return guarded([&]() -> PyObject* {
    LinkRows rows;
    UsedByLinks used;
    if (!rows.take(batch)) return nullptr;
    bool known = tracks >= 0;
    const bool done = without_gil_if(rows.size() > kManyRows, [&] {
      known = known && used.find(rows, static_cast<size_t>(tracks));
    });
    if (!done) return nullptr;
    return known ? column_tuple(used.tracks, used.thread_ids) : index_error();
  });
}

// What a batch's rows index, as the numbers that ranges are remembered and found by.
struct Numbers {
  ColumnView<uint64_t> of_track;                 // a track's thread
  ColumnView<uint32_t> track;                    // where it stands in the caller's table
  ColumnView<uint64_t> thread_id, of_thread_id;  // ascending, and their threads

  bool take(PyObject* const* given) {
    return of_track.take(given[0], "of_track", nullptr) && track.take(given[1], "track", nullptr) &&
           thread_id.take(given[2], "thread_id", nullptr) && of_thread_id.take(given[3], "of_thread_id", nullptr);
  }

  bool has_forward(const LinkRows& rows, Py_ssize_t row) const {
    return rows.track(row) < std::min(of_track.size(), track.size());
  }
};

bool remember(ForwardRanges<ForwardRange>& ranges, const LinkRows& rows, const Numbers& numbers) {
  for (Py_ssize_t row = 0; row < rows.size(); ++row) {
    if (!rows.is_forward(row)) continue;
    if (!numbers.has_forward(rows, row)) return false;
    const uint32_t track = rows.track(row);
    ranges.remember(rows.forward(row, numbers.of_track[track], numbers.track[track]));
  }
  return true;
}

struct Found {
  UnfilledVector<int64_t> row;
  UnfilledVector<uint64_t> event_id;
  UnfilledVector<int64_t> start_ns, end_ns;
  UnfilledVector<uint32_t> track;

  bool find(ForwardRanges<ForwardRange>& ranges, const LinkRows& rows, const Numbers& numbers) {
    for (Py_ssize_t at = 0; at < rows.size(); ++at) {
      if (!rows.is_backward(at)) continue;
      const Py_ssize_t thread = place_in_ordered(numbers.thread_id, rows.forward_thread_id(at));
      if (thread < 0 || thread >= numbers.of_thread_id.size()) return false;
      const ForwardRange* const range = ranges.match(rows.key(at, numbers.of_thread_id[thread]));
      if (range != nullptr) add(at, *range);
    }
    return true;
  }

 private:
  void add(int64_t at, const ForwardRange& range) {
    row.push_back(at), event_id.push_back(range.event_id), track.push_back(range.track);
    start_ns.push_back(range.start_ns), end_ns.push_back(range.end_ns);
  }
};

PyObject* match(PyObject* self, PyObject* arguments) {
  PyObject *batch, *given[4];
  if (!PyArg_ParseTuple(arguments, "OOOOO:match", &batch, &given[0], &given[1], &given[2], &given[3])) return nullptr;
  return guarded([&]() -> PyObject* {
    LinkRows rows;
    Numbers numbers;
    Found found;
    if (!rows.take(batch) || !numbers.take(given)) return nullptr;
    bool known = true;
    const bool done = done_alone(self, rows.size(), [&](ForwardRanges<ForwardRange>& ranges) {
      known = remember(ranges, rows, numbers) && found.find(ranges, rows, numbers);
    });
    if (!done) return nullptr;
    if (!known) return index_error();
    return column_tuple(found.row, found.event_id, found.start_ns, found.end_ns, found.track);
  });
}

// The tracks that ranges index, each once and in ascending order.
std::vector<uint32_t> used_tracks(const UnfilledVector<ForwardRange>& ranges) {
  std::vector<uint8_t> used;
  for (const ForwardRange& range : ranges) {
    if (range.track >= used.size()) used.resize(range.track + size_t{1});
    used[range.track] = 1;
  }
  return marked_places(used);
}

PyObject* forget_first(PyObject* self, PyObject* arguments) {
  Py_ssize_t count;
  int only_matched;
  if (!PyArg_ParseTuple(arguments, "np:forget_first", &count, &only_matched)) return nullptr;
  return guarded([&]() -> PyObject* {
    std::vector<uint32_t> used;
    const bool done = done_alone(self, kAllRanges, [&](ForwardRanges<ForwardRange>& ranges) {
      ranges.forget_first(static_cast<size_t>(std::max<Py_ssize_t>(0, count)), only_matched != 0);
      used = used_tracks(ranges.all());
    });
    return done ? column_tuple(used) : nullptr;
  });
}

PyObject* matched(PyObject* self, PyObject*) { return PyLong_FromSize_t(ranges_of(self).matched()); }

PyObject* renumber(PyObject* self, PyObject* given) {
  ColumnView<uint32_t> tracks;
  if (!tracks.take(given, "tracks", nullptr)) return nullptr;
  const bool done = done_alone(self, kAllRanges, [&](ForwardRanges<ForwardRange>& ranges) {
    for (ForwardRange& range : ranges.all()) {
      if (range.track < tracks.size()) range.track = tracks[range.track];
    }
  });
  if (!done) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"used_in", used_in, METH_VARARGS | METH_STATIC,
     "used_in(batch, tracks) -> tracks of forward rows, thread ids of backward ones, each once."},
    {"match", match, METH_VARARGS,
     "match(batch, of_track, track, thread_id, of_thread_id) -> backward rows with their forward ranges."},
    {"forget_first", forget_first, METH_VARARGS,
     "forget_first(count, only_matched) -> tracks of those that are left, each once."},
    {"matched", matched, METH_NOARGS, "matched() -> how many of them a backward range belongs to."},
    {"renumber", renumber, METH_O, "renumber(tracks): others stand for these from now on."},
    {nullptr, nullptr, 0, nullptr}};

PySequenceMethods as_sequence = {length};

PyTypeObject links_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn._native.ForwardRanges";
  type.tp_basicsize = sizeof(ForwardRangesObject);
  type.tp_new = ranges_new;
  type.tp_dealloc = ranges_dealloc;
  type.tp_methods = methods;
  type.tp_as_sequence = &as_sequence;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "ForwardRanges(): those that backward ranges may belong to. See Python's `batches/links.py`.";
  return type;
}

PyTypeObject LinksType = links_type();

}  // namespace

int add_links_type(PyObject* module) {
  if (PyType_Ready(&LinksType) < 0) return -1;
  Py_INCREF(&LinksType);
  return PyModule_AddObject(module, "ForwardRanges", reinterpret_cast<PyObject*>(&LinksType));
}

}  // namespace recfn
