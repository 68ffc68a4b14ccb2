#include "chrome/chrome_columns.hpp"

#include <initializer_list>

namespace recfn {

bool ChromeColumns::take(PyObject* batch) {
  return event_id.take(batch, "event_id") && handle.take(batch, "handle") &&
         forward_thread_id.take(batch, "forward_thread_id") && start_ns.take(batch, "start_ns") &&
         end_ns.take(batch, "end_ns") && sequence_nr.take(batch, "sequence_nr") && node_id.take(batch, "node_id") &&
         debug_handle.take(batch, "debug_handle") && flops.take(batch, "flops") && nbytes.take(batch, "nbytes") &&
         name.take(batch, "name") && thread.take(batch, "thread") && end_thread.take(batch, "end_thread") &&
         flags.take(batch, "flags") && shapes.take(batch, "shapes") && dtypes.take(batch, "dtypes") &&
         module.take(batch, "module") && error.take(batch, "error") && stack.take(batch, "stack") &&
         device.take(batch, "device") && kind.take(batch, "kind") && scope.take(batch, "scope") &&
         source.take(batch, "source") && equally_long();
}

bool ChromeColumns::equally_long() const {
  const Py_ssize_t n = size();
  for (const Py_ssize_t other :
       {handle.size(), forward_thread_id.size(), start_ns.size(), end_ns.size(), sequence_nr.size(), node_id.size(),
        debug_handle.size(), flops.size(), nbytes.size(), name.size(), thread.size(), end_thread.size(), flags.size(),
        shapes.size(), dtypes.size(), module.size(), error.size(), stack.size(), device.size(), kind.size(), scope.size(),
        source.size()}) {
    if (other == n) continue;
    PyErr_Format(PyExc_ValueError, "columns of %zd and %zd rows; a batch's columns are equally long", n, other);
    return false;
  }
  return true;
}

}  // namespace recfn
