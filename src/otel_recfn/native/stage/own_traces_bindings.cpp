// `OwnTraces` for Python: where the traces begin that we start.
#include <optional>

#include "columns/column.hpp"
#include "columns/fields.hpp"
#include "cpython/python.hpp"
#include "memory/unfilled.hpp"
#include "stage/own_traces.hpp"
#include "stage/python_object.hpp"

namespace recfn {
namespace {

using namespace stage;

constexpr Py_ssize_t kManyTraceRows = 20'000;  // which take some 0.1 ms

using OwnTracesObject = Wrapped<OwnTraces>;

RowRecordType<TraceState> state_type;

OwnTraces& get_traces(PyObject* self) { return reinterpret_cast<OwnTracesObject*>(self)->value; }

PyObject* traces_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"begin_sources", nullptr};
  unsigned int begin_sources;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "$I:OwnTraces", const_cast<char**>(names),
                                   &begin_sources)) {
    return nullptr;
  }
  return OwnTracesObject::make(type, begin_sources);
}

PyObject* traces_advance(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"", "outside", "asked", "idle_ns", "short_idle_ns", nullptr};
  PyObject *batch, *outside, *asked;
  long long idle_ns, short_idle_ns;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O$OOLL:advance", const_cast<char**>(names),
                                   &batch, &outside, &asked, &idle_ns, &short_idle_ns)) {
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    OutermostRanges ranges;
    UnfilledVector<NewTraceRow> began;
    if (!ranges.take(batch, outside, asked)) return nullptr;
    const TraceIdleLimits idle_limits{idle_ns, short_idle_ns};
    const auto advance = [&](OwnTraces& traces) { traces.advance(ranges, idle_limits, began); };
    const bool is_long = ranges.size() + ranges.opened.size() > kManyTraceRows;
    return OwnTracesObject::done_alone(self, is_long, advance) ? make_column(began) : nullptr;
  });
}

PyObject* traces_end_idle(PyObject* self, PyObject* arguments) {
  long long now_ns, idle_ns;
  if (!PyArg_ParseTuple(arguments, "LL:end_idle", &now_ns, &idle_ns)) return nullptr;
  get_traces(self).end_idle(now_ns, idle_ns);
  Py_RETURN_NONE;
}

PyObject* traces_end_closed(PyObject* self, PyObject*) {
  get_traces(self).end_closed();
  Py_RETURN_NONE;
}

PyObject* traces_end_all(PyObject* self, PyObject*) {
  get_traces(self).end_all();
  Py_RETURN_NONE;
}

PyObject* traces_state(PyObject* self, PyObject* arguments) {
  unsigned long long begin;
  if (!PyArg_ParseTuple(arguments, "K:state", &begin)) return nullptr;
  const std::optional<TraceState> state = get_traces(self).state(begin);
  if (!state) Py_RETURN_NONE;
  return state_type.make(*state);
}

PyObject* traces_is_in_call(PyObject* self, PyObject* arguments) {
  unsigned long long begin, event_id;
  if (!PyArg_ParseTuple(arguments, "KK:is_in_call", &begin, &event_id)) return nullptr;
  return PyBool_FromLong(get_traces(self).is_in_call(begin, event_id) ? 1 : 0);
}

PyObject* traces_live(PyObject* self, PyObject*) {
  return guarded([&] {
    std::vector<LiveTraceRow> rows = get_traces(self).live();
    return make_column(rows);
  });
}

PyMethodDef traces_methods[] = {
    {"advance", with_keywords(traces_advance), METH_VARARGS | METH_KEYWORDS,
     "advance(batch, *, outside, asked, idle_ns, short_idle_ns) -> a table of new traces."},
    {"end_idle", traces_end_idle, METH_VARARGS,
     "end_idle(now_ns, idle_ns): end traces in whose threads nothing ran for so long."},
    {"end_closed", traces_end_closed, METH_NOARGS,
     "end_closed(): end traces in which nothing is open."},
    {"end_all", traces_end_all, METH_NOARGS, "end_all(): end all traces."},
    {"state", traces_state, METH_VARARGS,
     "state(begin) -> the TraceState of a trace; None if it was forgotten."},
    {"is_in_call", traces_is_in_call, METH_VARARGS,
     "is_in_call(begin, event_id) -> whether a range of a trace lies in a traced call of it."},
    {"live", traces_live, METH_NOARGS,
     "live() -> a table of traces to which more may come, or in which a range is open."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject OwnTracesType = OwnTracesObject::type(
    "otel_recfn._native.OwnTraces", traces_new, traces_methods,
    "OwnTraces(*, begin_sources): the traces that we start, for `sinks/spans/step_traces.py`.");

}  // namespace

int add_own_traces_type(PyObject* module) {
  const bool done = state_type.add_to(module, "otel_recfn._native.TraceState",
                                      "What is known of a trace after a batch.");
  return done ? PyModule_AddType(module, &OwnTracesType) : -1;
}

}  // namespace recfn
