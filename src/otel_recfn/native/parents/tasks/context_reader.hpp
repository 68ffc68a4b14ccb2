// Reading what is current, by readers written in Python.
#pragma once
#include <cstdint>

#include "core/globals.hpp"
#include "cpython/python.hpp"

namespace recfn {

// What Python reads for the recorder; null where nobody does.
struct ContextReaders {
  // () -> ContextReading of recording/types.py | None.
  PyObject* current = nullptr;
  // (thread number) -> whether Python started the thread that this is called in.
  PyObject* thread = nullptr;
  // (exception) -> whether a signal handler of the program's raised it.
  PyObject* is_the_programs = nullptr;
};

// Takes references of its own; None is null. False with an error set where there is no memory.
bool set_context_readers(const ContextReaders& readers);

// Whether there is anything to read.
bool has_context_readers();

// As RecorderHooks has them.
uint64_t context_version(const ThreadBuffer& buffer);
void read_context(ThreadBuffer& buffer, TaskView& view);

}  // namespace recfn
