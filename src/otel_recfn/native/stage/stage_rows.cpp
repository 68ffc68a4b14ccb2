#include "stage/stage_rows.hpp"

#include <algorithm>


namespace recfn::stage {
namespace {

bool known_or_error(bool is_known) {
  if (!is_known) PyErr_SetString(PyExc_IndexError, "a row indexes nothing; its context, thread and name have to be known");
  return is_known;
}

}  // namespace

const SpanAbove* Surroundings::root(uint64_t event_id) const {
  const auto is_before = [](const RootRow& one, uint64_t id) { return one.event_id < id; };
  const RootRow* const found = std::lower_bound(roots.begin(), roots.end(), event_id, is_before);
  return found != roots.end() && found->event_id == event_id ? &found->above : nullptr;
}

bool BatchRows::take(PyObject* batch) {
  return event_id.take(batch, "event_id") && parent.take(batch, "parent") && root.take(batch, "root") &&
         forward_thread_id.take(batch, "forward_thread_id") && start_ns.take(batch, "start_ns") &&
         end_ns.take(batch, "end_ns") && sequence_nr.take(batch, "sequence_nr") && name.take(batch, "name") &&
         thread.take(batch, "thread") && context.take(batch, "context") && flags.take(batch, "flags") &&
         kind.take(batch, "kind") && scope.take(batch, "scope") && source.take(batch, "source") &&
         equally_long({event_id.size(), parent.size(), root.size(), forward_thread_id.size(), start_ns.size(), end_ns.size(),
                       sequence_nr.size(), name.size(), thread.size(), context.size(), flags.size(), kind.size(), scope.size(),
                       source.size()});
}

bool BatchRows::index(const Surroundings& known) const {
  bool is_known = true;
  for (Py_ssize_t row = 0; row < size() && is_known; ++row) {
    is_known = context[row] < known.contexts.size() && thread[row] < static_cast<size_t>(known.threads.size()) &&
               name[row] < static_cast<size_t>(known.names.size());
  }
  return known_or_error(is_known);
}

bool BatchRows::have_tracks(Py_ssize_t tracks) const {
  bool is_known = true;
  for (Py_ssize_t row = 0; row < size() && is_known; ++row) is_known = thread[row] < static_cast<size_t>(tracks);
  return known_or_error(is_known);
}

bool AnnouncedRows::take(PyObject* source_column, PyObject* event_ids, PyObject* contexts) {
  return source.take(source_column, "source", nullptr) && event_id.take(event_ids, "event_id", nullptr) &&
         context.take(contexts, "context", nullptr) && equally_long({source.size(), event_id.size(), context.size()});
}

bool AnnouncedRows::index(const Surroundings& known) const {
  bool is_known = true;
  for (Py_ssize_t at = 0; at < size() && is_known; ++at) is_known = context[at] < known.contexts.size();
  return known_or_error(is_known);
}

}  // namespace recfn::stage
