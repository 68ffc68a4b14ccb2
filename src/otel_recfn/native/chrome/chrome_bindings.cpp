// Python's side of the Chrome trace: rows of a batch, and arrows, as bytes in memory that the caller keeps between calls: fresh
// memory would cost as much as the encoding.
//
// Every event is preceded by a comma: the sink has always written an event (the process's name) before.
#include "chrome/chrome_events.hpp"
#include "chrome/chrome_writer.hpp"
#include "columns/column_view.hpp"
#include "cpython/python.hpp"

#include <cstdint>

namespace recfn {
namespace {

constexpr size_t kFlowBytes = 384;  // of one arrow: the keys, and 20 digits for every number

// What `fill` writes, without the GIL, to the start of a bytearray, which grows to `most` bytes; its size. The buffer is held so
// that nobody else resizes it meanwhile.
template <typename Fill>
PyObject* fill_memory(PyObject* memory, size_t most, Fill fill) {
  const Py_ssize_t needed = static_cast<Py_ssize_t>(most);
  if (PyByteArray_GET_SIZE(memory) < needed && PyByteArray_Resize(memory, needed) < 0) return nullptr;
  Py_buffer view;
  if (PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE) < 0) return nullptr;
  size_t size = 0;
  const bool filled = without_gil([&] { size = fill(static_cast<char*>(view.buf)); });
  PyBuffer_Release(&view);
  return filled ? PyLong_FromSize_t(size) : nullptr;
}

PyObject* encode_events(PyObject*, PyObject* arguments) {
  PyObject *batch, *rows, *memory;
  long long pid, base_ns;
  if (!PyArg_ParseTuple(arguments, "OOLLO!", &batch, &rows, &pid, &base_ns, &PyByteArray_Type, &memory)) return nullptr;
  const Reference names(PyObject_GetAttrString(batch, "names"));
  if (!names) return nullptr;
  return guarded([&]() -> PyObject* {
    ChromeEvents events(names.get(), pid, base_ns);
    if (!events.read(batch, rows)) return nullptr;
    return fill_memory(memory, events.most_bytes(), [&](char* begin) { return events.encode(begin); });
  });
}

struct FlowEnds {
  ColumnView<uint64_t> tid;
  ColumnView<int64_t> ns;
};

void encode_flow_end(ChromeWriter& out, const FlowEnds& ends, Py_ssize_t row, int64_t pid, int64_t base_ns) {
  out.literal(",\"pid\":");
  out.number(pid);
  out.literal(",\"tid\":");
  out.number(ends.tid[row]);
  out.literal(",\"ts\":");
  out.microseconds(ends.ns[row] - base_ns);
  out.literal(",\"cat\":\"fwdbwd\",\"name\":\"fwdbwd\"");
}

PyObject* encode_flows(PyObject*, PyObject* arguments) {
  PyObject *from_tid, *from_ns, *to_tid, *to_ns, *memory;
  long long first_id, pid, base_ns;
  if (!PyArg_ParseTuple(arguments, "OOOOLLLO!", &from_tid, &from_ns, &to_tid, &to_ns, &first_id, &pid, &base_ns,
                        &PyByteArray_Type, &memory)) {
    return nullptr;
  }
  FlowEnds from, to;
  if (!from.tid.take_array(from_tid, "from_tid") || !from.ns.take_array(from_ns, "from_ns") ||
      !to.tid.take_array(to_tid, "to_tid") || !to.ns.take_array(to_ns, "to_ns")) {
    return nullptr;
  }
  const Py_ssize_t count = from.tid.size();
  if (!equally_long({count, from.ns.size(), to.tid.size(), to.ns.size()})) return nullptr;
  return fill_memory(memory, static_cast<size_t>(count) * kFlowBytes, [&](char* begin) {
    ChromeWriter out(begin);
    for (Py_ssize_t row = 0; row < count; ++row) {
      out.literal(",\n{\"ph\":\"s\",\"id\":");
      out.number(static_cast<int64_t>(first_id + row));
      encode_flow_end(out, from, row, pid, base_ns);
      out.literal("},\n{\"ph\":\"f\",\"id\":");
      out.number(static_cast<int64_t>(first_id + row));
      encode_flow_end(out, to, row, pid, base_ns);
      out.literal(",\"bp\":\"e\"}");
    }
    return out.size();
  });
}

PyMethodDef functions[] = {
    {"encode_chrome_events", encode_events, METH_VARARGS,
     "encode_chrome_events(batch, rows, pid, base_ns, memory) -> int\n\n"
     "The rows (an int64 array) as Chrome trace events: so many bytes at the start of the bytearray, which grows as needed."},
    {"encode_chrome_flows", encode_flows, METH_VARARGS,
     "encode_chrome_flows(from_tid, from_ns, to_tid, to_ns, first_id, pid, base_ns, memory) -> int\n\n"
     "One fwdbwd arrow per row, from the start of a forward slice to the start of its backward slice, as encode_chrome_events."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_chrome_encoder(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace recfn
