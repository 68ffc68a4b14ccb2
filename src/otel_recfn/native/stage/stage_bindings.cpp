// `Stage` and `ForwardRanges` for Python: tables in, tables out. What takes long is done without
// the GIL.
#include <algorithm>
#include <new>
#include <optional>

#include "columns/column.hpp"
#include "cpython/python.hpp"
#include "stage/stage.hpp"

namespace recfn {
namespace {

using namespace stage;

constexpr Py_ssize_t kManyRows = 2'000;       // which take some 0.1 ms
constexpr Py_ssize_t kManyLinkRows = 10'000;  // the same, where they are only linked
constexpr int64_t kMostWaiting = 1 << 30;     // ranges are numbered with 32 bits

using FileRanges = ForwardRanges<uint64_t>;  // what a file's backward ranges may belong to, with
                                             // what these are shown in

// An object of Python's around one of ours, for one thread at a time.
template <typename T>
struct Wrapped {
  PyObject_HEAD
  T value;

  template <typename... Arguments>
  static PyObject* make(PyTypeObject* type, Arguments... arguments) {
    PyObject* self = type->tp_alloc(type, 0);
    if (self == nullptr) return nullptr;
    if (had_memory_for([&] { new (&reinterpret_cast<Wrapped*>(self)->value) T(arguments...); }))
      return self;
    type->tp_free(self);
    return PyErr_NoMemory();
  }

  static void dealloc(PyObject* self) {
    reinterpret_cast<Wrapped*>(self)->value.~T();
    Py_TYPE(self)->tp_free(self);
  }

  // One thread at a time uses it: the drain. False with an error set where memory is short.
  template <typename Work>
  static bool done_alone(PyObject* self, bool is_long, Work work) {
    return without_gil_if(is_long, [&] { work(reinterpret_cast<Wrapped*>(self)->value); });
  }

  static PyTypeObject type(const char* name, newfunc make_new, PyMethodDef* methods,
                           const char* documentation) {
    PyTypeObject type = type_of_size(name, sizeof(Wrapped));
    type.tp_new = make_new;
    type.tp_dealloc = dealloc;
    type.tp_methods = methods;
    type.tp_doc = documentation;
    return type;
  }
};

using StageObject = Wrapped<Stage>;
using ForwardRangesObject = Wrapped<FileRanges>;

PyObject* stage_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"budget", "most_waiting", nullptr};
  long long budget, most_waiting;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "LL:Stage", const_cast<char**>(names), &budget,
                                   &most_waiting)) {
    return nullptr;
  }
  return StageObject::make(type,
                           Limits{budget, std::clamp<int64_t>(most_waiting, 1, kMostWaiting)});
}

// What `add` is given. False with an error set.
bool take_batch(PyObject* arguments, ToAdd& to_add) {
  PyObject *batch, *source, *event_id, *context, *contexts, *roots, *threads, *names, *shown,
      *modules;
  int in_order, folds;
  return PyArg_ParseTuple(arguments, "O(OOO)OOOOOOpp", &batch, &source, &event_id, &context,
                          &contexts, &roots, &threads, &names, &shown, &modules, &in_order,
                          &folds) &&
         (to_add.in_order = in_order != 0, to_add.folds = folds != 0, to_add.rows.take(batch)) &&
         to_add.announced.take(source, event_id, context) &&
         to_add.known.contexts.take(contexts, "contexts") &&
         to_add.known.roots.take(roots, "roots") &&
         to_add.known.threads.take_array(threads, "threads") &&
         to_add.known.names.take_array(names, "names") &&
         to_add.known.shown.take_array(shown, "shown") &&
         to_add.known.modules.take_array(modules, "modules") && to_add.all_is_known();
}

PyObject* stage_add(PyObject* self, PyObject* arguments) {
  PyObject* given;
  unsigned long long key;
  if (!PyArg_ParseTuple(arguments, "O!K:add", &PyTuple_Type, &given, &key)) return nullptr;
  return guarded([&]() -> PyObject* {
    ToAdd batch;
    if (!take_batch(given, batch)) return nullptr;
    std::optional<PlannedRows> rows;
    UnfilledVector<LinkRow> links;
    std::vector<TraceRow> traces;
    const bool done =
        StageObject::done_alone(self, batch.rows.size() > kManyRows, [&](Stage& stage) {
          rows.emplace(stage.add(batch));
          if (!batch.folds) links = stage.links_of(*rows, key, traces);
        });
    return done ? column_tuple(rows->fates, rows->units, rows->row, rows->parent, rows->unit, links,
                               traces)
                : nullptr;
  });
}

PyObject* stage_decide(PyObject* self, PyObject* arguments) {
  PyObject* given;
  unsigned long long key;
  int is_long;
  if (!PyArg_ParseTuple(arguments, "OKp:decide", &given, &key, &is_long)) return nullptr;
  return guarded([&]() -> PyObject* {
    TableView<const UnitToDecide> units;
    Decided decided;
    if (!units.take(given, "units")) return nullptr;
    const auto decide = [&](Stage& stage) { decided = stage.decide(units, key); };
    if (!StageObject::done_alone(self, is_long != 0, decide)) return nullptr;
    return column_tuple(decided.kept, decided.sums, decided.top, decided.summaries, decided.traces);
  });
}

PyObject* stage_kept(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    std::vector<int64_t> rows;
    const bool done =
        StageObject::done_alone(self, true, [&](Stage& stage) { rows = stage.kept(); });
    return done ? column_tuple(rows) : nullptr;
  });
}

PyObject* stage_owe(PyObject* self, PyObject* roots) {
  return guarded([&]() -> PyObject* {
    ColumnView<uint64_t> event_ids;
    std::vector<uint8_t> is_open;
    if (!event_ids.take_array(roots, "roots")) return nullptr;
    const bool done = StageObject::done_alone(self, false, [&](Stage& stage) {
      for (Py_ssize_t at = 0; at < event_ids.size(); ++at)
        is_open.push_back(stage.owe(event_ids[at]) ? 1 : 0);
    });
    return done ? column_tuple(is_open) : nullptr;
  });
}

PyMethodDef stage_methods[] = {
    {"add", stage_add, METH_VARARGS,
     "add((batch, announced, contexts, roots, threads, names, shown, modules, in_order, folds), "
     "key) -> fates, units in it, planned\n"
     "rows, their parents and units; where it doesn't fold, their links and the traces of these."},
    {"decide", stage_decide, METH_VARARGS,
     "decide(units, key, is_long) -> kept ranges, sums, names of sums, summaries, traces."},
    {"kept", stage_kept, METH_NOARGS,
     "kept() -> (the numbers of the rows that may be kept yet, in ascending order,)"},
    {"owe", stage_owe, METH_O, "owe(roots) -> (1 for each that is open, and will be a span,)"},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject StageType = StageObject::type(
    "otel_recfn._native.Stage", stage_new, stage_methods,
    "Stage(budget, most_waiting): ranges to decided units, for `batches/stage.py`.");

PyObject* ranges_new(PyTypeObject* type, PyObject*, PyObject*) {
  return ForwardRangesObject::make(type);
}

// Backward rows, with what is known of their forward ranges: columns.
struct Links {
  UnfilledVector<int64_t> row;
  UnfilledVector<uint64_t> event_id;
  UnfilledVector<int64_t> start_ns;
  UnfilledVector<uint64_t> shown_in;

  void find(FileRanges& ranges, const BatchRows& rows, const ColumnView<uint64_t>& threads,
            const ColumnView<uint64_t>& numbers) {
    const auto row_at = [](size_t at) { return static_cast<Py_ssize_t>(at); };
    const auto number = [&](size_t at) {
      return numbers[rows.thread[static_cast<Py_ssize_t>(at)]];
    };
    ranges.link(rows, threads, static_cast<size_t>(rows.size()), row_at, number,
                [this](size_t at, const auto& forward) {
                  row.push_back(static_cast<int64_t>(at)), event_id.push_back(forward.event_id);
                  start_ns.push_back(forward.start_ns), shown_in.push_back(forward.of);
                });
  }
};

PyObject* ranges_link(PyObject* self, PyObject* arguments) {
  PyObject *batch, *threads_given, *numbers_given;
  if (!PyArg_ParseTuple(arguments, "OOO:link", &batch, &threads_given, &numbers_given))
    return nullptr;
  return guarded([&]() -> PyObject* {
    BatchRows rows;
    ColumnView<uint64_t> threads, numbers;
    Links links;
    if (!rows.take(batch) || !threads.take_array(threads_given, "threads") ||
        !numbers.take_array(numbers_given, "numbers")) {
      return nullptr;
    }
    const auto tracks = static_cast<size_t>(std::min(threads.size(), numbers.size()));
    if (!all_known(rows.size(), [&](Py_ssize_t row) { return rows.thread[row] < tracks; }))
      return nullptr;
    const auto find = [&](FileRanges& ranges) { links.find(ranges, rows, threads, numbers); };
    const bool done = ForwardRangesObject::done_alone(self, rows.size() > kManyLinkRows, find);
    return done ? column_tuple(links.row, links.event_id, links.start_ns, links.shown_in) : nullptr;
  });
}

PyMethodDef ranges_methods[] = {
    {"link", ranges_link, METH_VARARGS,
     "link(batch, threads, numbers) -> backward rows, with their forward ranges."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject ForwardRangesType = ForwardRangesObject::type(
    "otel_recfn._native.ForwardRanges", ranges_new, ranges_methods,
    "ForwardRanges(): those that backward ranges may belong to, for `sinks/chrome/encoder.py`.");

}  // namespace

int add_stage_type(PyObject* module) { return PyModule_AddType(module, &StageType); }

int add_links_type(PyObject* module) { return PyModule_AddType(module, &ForwardRangesType); }

}  // namespace recfn
