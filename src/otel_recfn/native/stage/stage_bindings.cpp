// `Stage` for Python: tables in, records of columns and tables out. What takes long is done without
// the GIL.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "columns/column.hpp"
#include "columns/fields.hpp"
#include "cpython/python.hpp"
#include "stage/names.hpp"
#include "stage/own_traces.hpp"
#include "stage/python_object.hpp"
#include "stage/stage.hpp"
#include "stage/waiting_rows.hpp"

namespace recfn {
namespace {

using namespace stage;

constexpr Py_ssize_t kManyRows = 2'000;       // which take some 0.1 ms
constexpr int64_t kManyRowsToDecide = 5'000;  // the same, where their units are decided
constexpr int64_t kMaxWaiting = 1 << 30;      // ranges are numbered with 32 bits

// A stage, with what it has of Python's.
struct PythonStage {
  PythonStage(const Limits& limits, bool torch_names, const WaitingLimits& waiting_limits,
              const BatchMaker& maker)
      : names(torch_names), waiting(waiting_limits, maker), stage(limits) {}

  // Reads a batch, and numbers its names. False with an error set.
  bool take_batch(PyObject* batch, PyObject* contexts, PyObject* roots, ToAdd& added) {
    const Reference list(PyObject_GetAttrString(batch, "names"));
    return list && names.number_all(list.get()) && added.take(batch, contexts, roots, names);
  }

  Names names;
  WaitingRows waiting;
  Stage stage;
};

using StageObject = Wrapped<PythonStage>;

RecordType added_type, planned_type, decided_type;
RowRecordType<NewUnit> new_unit_type;
RowRecordType<UnendedUnit> unended_type;
RowRecordType<UnitSummary> summary_type;

PythonStage& get_stage(PyObject* self) { return reinterpret_cast<StageObject*>(self)->value; }

PyObject* stage_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"budget",    "max_waiting",       "max_units",     "max_rows",
                                "many_rows", "torch_names",       "rows_to_spare", "max_batches",
                                "columns",   "batch_from_fields", nullptr};
  long long budget, max_waiting, max_units, max_rows, many_rows, rows_to_spare, max_batches;
  int torch_names;
  BatchMaker maker{};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "$LLLLLpLLO!O:Stage", const_cast<char**>(names),
                                   &budget, &max_waiting, &max_units, &max_rows, &many_rows,
                                   &torch_names, &rows_to_spare, &max_batches, &PyTuple_Type,
                                   &maker.columns, &maker.batch_from_fields)) {
    return nullptr;
  }
  const Limits limits{budget, std::clamp<int64_t>(max_waiting, 1, kMaxWaiting), max_units, max_rows,
                      many_rows};
  return StageObject::make(type, limits, torch_names != 0,
                           WaitingLimits{rows_to_spare, max_batches}, maker);
}

// A list of the numbers.
Reference number_list(const std::vector<int64_t>& numbers) {
  return Reference(list_of(numbers, [](int64_t number) { return PyLong_FromLongLong(number); }));
}

// A column, or None in place of one without a row.
template <typename Vector>
Reference column_or_none(Vector& items) {
  return items.empty() ? Reference(Py_NewRef(Py_None)) : column(items);
}

// Drops the rows that no unit needs any longer. False with an error set.
bool drop_rows(PythonStage& own) {
  std::vector<int64_t> needed;
  return without_gil([&] { needed = own.stage.selected(); }) && own.waiting.drop_all_but(needed);
}

PyObject* stage_add(PyObject* self, PyObject* arguments) {
  PyObject *batch, *contexts, *roots;
  int continues;
  if (!PyArg_ParseTuple(arguments, "OOOp:_add", &batch, &contexts, &roots, &continues)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    PythonStage& own = get_stage(self);
    ToAdd added;
    if (!own.take_batch(batch, contexts, roots, added)) return nullptr;
    if (own.waiting.is_crowded() && !drop_rows(own)) return nullptr;
    std::optional<PlannedRows> rows;
    const int64_t first_row = own.stage.next_row();
    const bool is_long = added.rows.size() > kManyRows;
    const auto add = [&] { rows.emplace(own.stage.add(added, continues != 0)); };
    if (!without_gil_if(is_long, add)) return nullptr;
    const size_t planned = rows->row.size();
    own.waiting.add(batch, added.rows.size(), first_row, std::move(rows->row));
    int64_t largest_unit_rows = 0;
    for (const Unit* unit : rows->open) {
      largest_unit_rows = std::max(largest_unit_rows, unit->state.rows());
    }
    return added_type.make(number_list(rows->outcomes), Reference(PyLong_FromSize_t(planned)),
                           Reference(new_unit_type.list(rows->new_units)),
                           Reference(PyLong_FromLongLong(largest_unit_rows)),
                           Reference(PyLong_FromSize_t(own.names.size())));
  });
}

PyObject* stage_plan(PyObject* self, PyObject* arguments) {
  PyObject *batch, *contexts, *roots;
  unsigned long long key;
  if (!PyArg_ParseTuple(arguments, "OOOK:_plan", &batch, &contexts, &roots, &key)) return nullptr;
  return guarded([&]() -> PyObject* {
    PythonStage& own = get_stage(self);
    ToAdd added;
    if (!own.take_batch(batch, contexts, roots, added)) return nullptr;
    std::optional<PlannedRows> rows;
    LinkColumns links;
    const bool done = without_gil_if(added.rows.size() > kManyRows, [&] {
      rows.emplace(own.stage.plan(added));
      links = own.stage.make_links(*rows, key);
    });
    if (!done) return nullptr;
    return planned_type.make(
        number_list(rows->outcomes), Reference(new_unit_type.list(rows->new_units)),
        column(rows->row), column(rows->parent), column(rows->unit),
        column_or_none(links.linked_id), column_or_none(links.linked_span), column(links.traces));
  });
}

// The names that the tables have, by their numbers; null with an error set.
Reference decided_names(const Decided& decided, const Names& names) {
  Reference found(PyDict_New());
  const auto add = [&](uint32_t number) {
    const Reference key(found ? PyLong_FromUnsignedLong(number) : nullptr);
    if (!key || PyDict_SetItem(found.get(), key.get(), names.text(number)) < 0) found = Reference();
  };
  for (const SummaryRow& row : decided.summaries) {
    add(row.name);
    add(row.module);
    add(row.enclosing_module);
  }
  for (const TopRow& row : decided.top) add(row.name);
  for (const CallerRow& row : decided.callers) add(row.name);
  return found;
}

// Sets a column of a batch's fields. False with an error set.
template <typename T>
bool set_column(const Reference& fields, const char* name, UnfilledVector<T>& values) {
  const Reference column(make_column(values));
  return column && PyDict_SetItemString(fields.get(), name, column.get()) == 0;
}

// A batch of the ranges that are kept. `is_partial`: what is around them may still come. Null with
// an error set.
PyObject* selected_batch(PythonStage& own, Decided& decided, bool is_partial) {
  ChosenRows chosen;
  SelectedColumns& selected = decided.selected;
  if (!own.waiting.find(selected.row, chosen)) return nullptr;
  const auto is_open = [&](uint64_t root) { return own.stage.is_pending_parent(root); };
  if (!set_parents(chosen, selected, is_partial, is_open)) return nullptr;
  const Reference fields(own.waiting.fields(chosen));
  // A backward node has the id, the place and the times of the range around it.
  if (!fields || !set_column(fields, "event_id", selected.event_id) ||
      !set_column(fields, "parent", selected.enclosing_id) ||
      !set_column(fields, "start_ns", selected.start_ns) ||
      !set_column(fields, "end_ns", selected.end_ns)) {
    return nullptr;
  }
  return own.waiting.batch_from_fields(fields.get(), chosen.size());
}

PyObject* stage_decide(PyObject* self, PyObject* arguments) {
  PyObject *grant_table, *sample_table;
  int is_partial;
  unsigned long long key;
  if (!PyArg_ParseTuple(arguments, "OOpK:_decide", &grant_table, &sample_table, &is_partial,
                        &key)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    PythonStage& own = get_stage(self);
    TableView<const GrantRow> grants;
    TableView<const SampledRow> sampled;
    Decided decided;
    if (!grants.take(grant_table, "grants")) return nullptr;
    if (!sampled.take(sample_table, "sampled")) return nullptr;
    const bool is_long = own.stage.granted_rows(grants) > kManyRowsToDecide;
    const auto decide = [&] { decided = own.stage.decide(grants, sampled, is_partial != 0, key); };
    if (!without_gil_if(is_long, decide)) return nullptr;
    Reference batch(selected_batch(own, decided, is_partial != 0));
    Reference names(batch ? decided_names(decided, own.names) : Reference());
    if (!names) return nullptr;
    LinkColumns& links = decided.links;
    return decided_type.make(std::move(batch), column_or_none(decided.selected.span_event_id),
                             column(decided.selected.parent), column(decided.selected.parent_span),
                             column_or_none(links.linked_id), column_or_none(links.linked_span),
                             column(links.traces), column(decided.sums), column(decided.top),
                             column(decided.summaries), column(decided.callers), std::move(names));
  });
}

PyObject* stage_find(PyObject* self, PyObject* arguments) {
  unsigned long long trace_high, trace_low, span_id;
  if (!PyArg_ParseTuple(arguments, "KKK:_find", &trace_high, &trace_low, &span_id)) return nullptr;
  return PyLong_FromUnsignedLongLong(get_stage(self).stage.find({trace_high, trace_low, span_id}));
}

PyObject* none_if_open(bool is_open, unsigned long long unit) {
  if (is_open) Py_RETURN_NONE;
  return PyErr_Format(PyExc_KeyError, "unit %llu isn't open; it was decided, or never began", unit);
}

// Reads a time of a span; None is one that isn't known.
int read_time(PyObject* argument, void* time) {
  auto* const time_ns = static_cast<long long*>(time);
  *time_ns = argument == Py_None ? SpanEnd::kUnknown : PyLong_AsLongLong(argument);
  return PyErr_Occurred() == nullptr ? 1 : 0;
}

PyObject* stage_end_span(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"unit", "ended_by_ns", "start_ns", "end_ns", "failed", nullptr};
  unsigned long long unit;
  long long ended_by_ns, start_ns, end_ns;
  int failed;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "K$LO&O&p:end_span",
                                   const_cast<char**>(names), &unit, &ended_by_ns, read_time,
                                   &start_ns, read_time, &end_ns, &failed)) {
    return nullptr;
  }
  const SpanEnd end{ended_by_ns, start_ns, end_ns, failed != 0};
  return none_if_open(get_stage(self).stage.end_span(unit, end), unit);
}

PyObject* stage_finish(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"unit", "takes_sums", nullptr};
  unsigned long long unit;
  int takes_sums = 0;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "K|$p:finish", const_cast<char**>(names),
                                   &unit, &takes_sums)) {
    return nullptr;
  }
  return none_if_open(get_stage(self).stage.finish(unit, takes_sums != 0), unit);
}

PyObject* stage_note_idle(PyObject* self, PyObject*) {
  get_stage(self).stage.note_idle();
  Py_RETURN_NONE;
}

PyObject* stage_unended(PyObject* self, PyObject*) {
  return guarded([&] { return unended_type.list(get_stage(self).stage.unended()); });
}

PyObject* stage_due(PyObject* self, PyObject* arguments) {
  long long drained_ns, now_ns;
  if (!PyArg_ParseTuple(arguments, "LL:due", &drained_ns, &now_ns)) return nullptr;
  return guarded([&] {
    PythonStage& own = get_stage(self);
    return summary_type.list(own.stage.due(drained_ns, now_ns, own.waiting.rows()));
  });
}

PyObject* stage_units(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"min_rows", nullptr};
  long long min_rows = 0;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|$L:units", const_cast<char**>(names),
                                   &min_rows)) {
    return nullptr;
  }
  return guarded(
      [&] { return summary_type.list(get_stage(self).stage.units_with_rows(min_rows)); });
}

PyObject* stage_add_nodes(PyObject* self, PyObject*) {
  return guarded([&] {
    get_stage(self).stage.add_nodes();
    return Py_NewRef(Py_None);
  });
}

PyObject* stage_forget_names(PyObject* self, PyObject*) {
  get_stage(self).names.forget();
  Py_RETURN_NONE;
}

PyObject* stage_waiting_rows(PyObject* self, PyObject*) {
  return PyLong_FromLongLong(get_stage(self).waiting.rows());
}

PyMethodDef stage_methods[] = {
    {"_add", stage_add, METH_VARARGS,
     "_add(batch, contexts, roots, continues) -> Added: its rows wait for the end of their units."},
    {"_plan", stage_plan, METH_VARARGS,
     "_plan(batch, contexts, roots, key) -> Planned: each row becomes a span of its own."},
    {"_decide", stage_decide, METH_VARARGS,
     "_decide(grants, sampled, is_partial, key) -> Decided: tables of the units' spans and sums."},
    {"_find", stage_find, METH_VARARGS,
     "_find(trace_high, trace_low, span_id) -> the unit below that span; 0 if none is open."},
    {"end_span", with_keywords(stage_end_span), METH_VARARGS | METH_KEYWORDS,
     "end_span(unit, *, ended_by_ns, start_ns, end_ns, failed): the span above it has ended."},
    {"finish", with_keywords(stage_finish), METH_VARARGS | METH_KEYWORDS,
     "finish(unit, *, takes_sums=False): nothing more comes to it."},
    {"note_idle", stage_note_idle, METH_NOARGS,
     "note_idle(): no batch came for as long as one takes."},
    {"unended", stage_unended, METH_NOARGS,
     "unended() -> a list of UnendedUnit, whose spans aren't known to have ended."},
    {"due", stage_due, METH_VARARGS,
     "due(drained_ns, now_ns) -> a list of UnitSummary: units that are to be decided now."},
    {"units", with_keywords(stage_units), METH_VARARGS | METH_KEYWORDS,
     "units(*, min_rows=0) -> a list of UnitSummary: open units with so many rows."},
    {"add_nodes", stage_add_nodes, METH_NOARGS,
     "add_nodes(): backward nodes wait no longer for the ranges around them."},
    {"forget_names", stage_forget_names, METH_NOARGS,
     "forget_names(): the names, none of which is needed any longer."},
    {"waiting_rows", stage_waiting_rows, METH_NOARGS,
     "waiting_rows() -> the number of rows that wait, as some of them may be kept."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject StageType = StageObject::type("otel_recfn._native.Stage", stage_new, stage_methods,
                                           "Ranges to decided units, for `batches/stage.py`.");

// The types of tables, as `numpy.dtype` takes them, by name.
bool add_table_types(PyObject* module) {
  const Reference types(PyDict_New());
  const auto add = [&](const char* name, Reference type) {
    return type && PyDict_SetItemString(types.get(), name, type.get()) == 0;
  };
  return types && add("context", Reference(table_type<ContextRow>())) &&
         add("root", Reference(table_type<RootRow>())) &&
         add("new_trace", Reference(table_type<NewTraceRow>())) &&
         add("asked", Reference(table_type<AskedRow>())) &&
         add("live_trace", Reference(table_type<LiveTraceRow>())) &&
         add("grant", Reference(table_type<GrantRow>())) &&
         add("sampled", Reference(table_type<SampledRow>())) &&
         add("trace", Reference(table_type<TraceRow>())) &&
         add("sums", Reference(table_type<SumsRow>())) &&
         add("top", Reference(table_type<TopRow>())) &&
         add("summary", Reference(table_type<SummaryRow>())) &&
         add("caller", Reference(table_type<CallerRow>())) &&
         PyModule_AddObjectRef(module, "TABLE_TYPES", types.get()) == 0;
}

}  // namespace

int add_stage_type(PyObject* module) {
  const bool done =
      added_type.add_to(module, "otel_recfn._native.Added", "What a batch came to.",
                        {"outcomes", "planned", "new_units", "largest_unit_rows", "names"}) &&
      planned_type.add_to(module, "otel_recfn._native.Planned",
                          "The spans that the rows of a batch become.",
                          {"outcomes", "new_units", "row", "parent", "parent_span", "linked_id",
                           "linked_span", "traces"}) &&
      decided_type.add_to(module, "otel_recfn._native.Decided", "Units that were decided together.",
                          {"batch", "event_id", "parent", "parent_span", "linked_id", "linked_span",
                           "traces", "sums", "top", "summaries", "callers", "names"}) &&
      new_unit_type.add_to(module, "otel_recfn._native.NewUnit",
                           "A unit that begins in a batch.") &&
      unended_type.add_to(module, "otel_recfn._native.UnendedUnit",
                          "A unit whose span isn't known to have ended.") &&
      summary_type.add_to(module, "otel_recfn._native.UnitSummary",
                          "A unit, to grant spans to it.") &&
      add_table_types(module) && PyModule_AddType(module, &StageType) == 0;
  return done ? 0 : -1;
}

}  // namespace recfn
