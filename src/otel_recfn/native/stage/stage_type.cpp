// `Stage` for Python: tables in, tables out. What takes long is done without the GIL.
#include <algorithm>
#include <new>
#include <optional>

#include "columns/column.hpp"
#include "cpython/python.hpp"
#include "stage/stage.hpp"

namespace recfn {
namespace {

using stage::Decided;
using stage::PlannedRows;
using stage::Stage;
using stage::ToAdd;
using stage::TraceRow;
using stage::UnitToDecide;

constexpr Py_ssize_t kManyRows = 2'000;    // which take some 0.1 ms
constexpr int64_t kMostWaiting = 1 << 30;  // ranges are numbered with 32 bits

struct StageObject {
  PyObject_HEAD
  bool in_use;  // read and written with the GIL
  Stage stage;
};

Stage& stage_of(PyObject* self) { return reinterpret_cast<StageObject*>(self)->stage; }

// The work on a stage, for one thread at a time. False with an error set where another one is at it, or memory is short.
template <typename Work>
bool done_alone(PyObject* self, bool is_long, Work work) {
  const OneUser user(reinterpret_cast<StageObject*>(self)->in_use, "Stage");
  return user && without_gil_if(is_long, [&] { work(stage_of(self)); });
}

PyObject* stage_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"budget", "most_waiting", nullptr};
  long long budget, most_waiting;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "LL:Stage", const_cast<char**>(names), &budget, &most_waiting)) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) {
    new (&stage_of(self)) Stage({budget, std::clamp<int64_t>(most_waiting, 1, kMostWaiting)});
  }
  return self;
}

void stage_dealloc(PyObject* self) {
  stage_of(self).~Stage();
  Py_TYPE(self)->tp_free(self);
}

// What `add` and `plan` are given. False with an error set.
bool take_batch(PyObject* arguments, ToAdd& to_add) {
  PyObject *batch, *source, *event_id, *context, *contexts, *roots, *threads, *names;
  int in_order;
  return PyArg_ParseTuple(arguments, "O(OOO)OOOOp", &batch, &source, &event_id, &context, &contexts, &roots, &threads, &names,
                          &in_order) &&
         (to_add.in_order = in_order != 0, to_add.rows.take(batch)) && to_add.announced.take(source, event_id, context) &&
         to_add.known.contexts.take(contexts, "contexts") && to_add.known.roots.take(roots, "roots") &&
         to_add.known.threads.take(threads, "threads", nullptr) && to_add.known.names.take(names, "names", nullptr) &&
         to_add.rows.index(to_add.known) && to_add.announced.index(to_add.known);
}

PyObject* stage_add(PyObject* self, PyObject* arguments) {
  return guarded([&]() -> PyObject* {
    ToAdd batch;
    if (!take_batch(arguments, batch)) return nullptr;
    std::optional<PlannedRows> rows;
    const auto add = [&](Stage& stage) { rows.emplace(stage.add(batch)); };
    return done_alone(self, batch.rows.size() > kManyRows, add) ? column_tuple(rows->fates, rows->units, rows->row) : nullptr;
  });
}

PyObject* stage_plan(PyObject* self, PyObject* arguments) {
  PyObject* given;
  unsigned long long key;
  if (!PyArg_ParseTuple(arguments, "O!K:plan", &PyTuple_Type, &given, &key)) return nullptr;
  return guarded([&]() -> PyObject* {
    ToAdd batch;
    if (!take_batch(given, batch)) return nullptr;
    std::optional<PlannedRows> rows;
    UnfilledVector<stage::LinkRow> links;
    std::vector<TraceRow> traces;
    const bool done = done_alone(self, batch.rows.size() > kManyRows, [&](Stage& stage) {
      rows.emplace(stage.plan(batch));
      links = stage.links_of(*rows, key, traces);
    });
    return done ? column_tuple(rows->fates, rows->units, rows->row, rows->parent, rows->unit, links, traces) : nullptr;
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
    if (!done_alone(self, is_long != 0, [&](Stage& stage) { decided = stage.decide(units, key); })) return nullptr;
    return column_tuple(decided.kept, decided.sums, decided.top, decided.summaries.rows, decided.summaries.counts,
                        decided.traces);
  });
}

PyObject* stage_kept(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    std::vector<int64_t> rows;
    return done_alone(self, true, [&](Stage& stage) { rows = stage.kept(); }) ? column_tuple(rows) : nullptr;
  });
}

PyObject* stage_owe(PyObject* self, PyObject* roots) {
  return guarded([&]() -> PyObject* {
    ColumnView<uint64_t> event_ids;
    std::vector<uint8_t> is_open;
    if (!event_ids.take(roots, "roots", nullptr)) return nullptr;
    const bool done = done_alone(self, false, [&](Stage& stage) {
      for (Py_ssize_t at = 0; at < event_ids.size(); ++at) is_open.push_back(stage.owe(event_ids[at]) ? 1 : 0);
    });
    return done ? column_tuple(is_open) : nullptr;
  });
}

PyMethodDef methods[] = {
    {"add", stage_add, METH_VARARGS,
     "add(batch, announced, contexts, roots, threads, names, in_order) -> fates, units in it, planned rows; they are folded."},
    {"plan", stage_plan, METH_VARARGS,
     "plan(what add is given, key) -> the same, and parent, unit and link of each row, and traces; nothing is folded."},
    {"decide", stage_decide, METH_VARARGS,
     "decide(units, key, is_long) -> kept ranges, sums, names of sums, summaries, their histograms, traces."},
    {"kept", stage_kept, METH_NOARGS, "kept() -> (the numbers of the rows that may be kept yet, in ascending order,)"},
    {"owe", stage_owe, METH_O, "owe(roots) -> (1 for each that is open, and will be a span,)"},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject stage_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "otel_recfn._native.Stage";
  type.tp_basicsize = sizeof(StageObject);
  type.tp_new = stage_new;
  type.tp_dealloc = stage_dealloc;
  type.tp_methods = methods;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "Stage(budget, most_waiting): ranges to decided units. See Python's `batches/stage.py`.";
  return type;
}

PyTypeObject StageType = stage_type();

}  // namespace

int add_stage_type(PyObject* module) { return PyModule_AddType(module, &StageType); }

}  // namespace recfn
