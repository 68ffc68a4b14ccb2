// Where a call begins or ends that needs more than the short way, and where a thread is met that
// has calls open already.
#include "calls/tracer.hpp"

#include <ctime>
#include <utility>

#include "core/registry.hpp"
#include "core/thread_buffer.hpp"

namespace recfn {
namespace {

constexpr uint64_t kRoomOfCall = 64;  // words: of a begin with its name, mostly
constexpr long kPauseNs = 100'000;
constexpr int kMostPauses = 5000;
constexpr int kMaxStartFrames =
    128;  // so many of the innermost calls that were open when tracing began, of each thread

// Begins a call. `name`: its own copy, as what is done here may run Python, which may free names.
// `frame`: the call's own, or null, as `call_site` takes it. Returns the event id; 0: it isn't
// recorded.
uint64_t begin(ThreadCalls& calls, std::string name, PyFrameObject* frame, uint64_t began_at = 0) {
  if (!calls.were_open && !is_recording()) return 0;
  const std::string site = tracer->call_sites ? call_site(frame) : std::string();
  RarePrelude rare;
  rare.texts[kCallSite] = text_of(site);
  const Begin call = call_of(text_of(name), site.empty() ? nullptr : &rare);
  if (calls.were_open) return begin_open_call(*tracer->globals, *calls.buffer, call, began_at);
  return begin_call(*tracer->globals, *calls.buffer, call);
}

int enter_named_by_frame(ThreadCalls& calls, const Begun& begun, PyObject* of_frame,
                         uint64_t tracing) {
  PyObject* const frame = reinterpret_cast<PyObject*>(begun.frame);
  const Reference held(Py_NewRef(of_frame));
  const Reference answer(call_unseen(held.get(), &frame, 1));
  if (!answer && without_name() < 0) return -1;
  const bool named = answer && PyUnicode_Check(answer.get());
  uint64_t event_id = 0;
  if (named && !is_deep_enough(calls))
    event_id = begin(calls, as_utf8(answer.get()), begun.frame, begun.began_at);
  push(calls, {event_id, begun.key}, tracing);
  return 0;
}

// The frames from this one outwards, which is given back, innermost first.
int stack_of(PyFrameObject* innermost, PyFrameObject** frames) {
  int count = 0;
  for (PyFrameObject* frame = innermost; frame != nullptr && count < kMaxStartFrames;) {
    frames[count++] = frame;
    frame = PyFrame_GetBack(frame);
    if (count == kMaxStartFrames) Py_XDECREF(frame);
  }
  return count;
}

// Since when the calls are open that are on a thread's stack as it is met: of one that was there
// when tracing began, since then, as all that it did since would have been told. Unless it has
// other records of this recording, which these can't stand before.
uint64_t open_since(const ThreadBuffer& buffer, uint64_t thread) {
  const bool has_recorded =
      buffer.rests != 0 ||
      buffer.generation == tracer->globals->generation.load(std::memory_order_relaxed);
  return thread <= tracer->newest_thread && !has_recorded && !had_other_profile_function(thread)
             ? tracer->began_at
             : 0;
}

// Begins these frames' calls, and gives the frames back.
int enter_stack(ThreadCalls& calls, PyFrameObject** frames, int count, uint64_t began_at) {
  const uint64_t tracing = calls.met_in;
  int result = 0;
  calls.were_open = true;
  for (int at = count; at-- > 0;) {
    const Reference code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frames[at])));
    const Begun begun{reinterpret_cast<PyCodeObject*>(code.get()), instruction_of(frames[at]),
                      frames[at], frames[at], began_at};
    if (result == 0 && calls.met_in == tracing) result = enter_slowly(calls, begun);
    calls.shown = 0;  // depth is counted from where tracing began
    Py_DECREF(frames[at]);
  }
  calls.were_open = false;
  return result;
}

// The innermost call in this frame that is open.
OpenCall* find_call(ThreadCalls& calls, const void* frame) {
  for (size_t at = calls.stack.size(); frame != nullptr && at-- > 0;) {
    if (calls.stack[at].frame == frame) return &calls.stack[at];
  }
  return nullptr;
}

// Ends the calls that are open in a thread, from any thread.
void end_and_forget(ThreadCalls& calls) {
  if (calls.met_in == kNotMet) return;
  ThreadBuffer* own = registry().current();
  if (calls.buffer == own) stack_leaf_of(calls);
  const uint64_t leaf = calls.buffer != own ? registry().end_calls(calls.buffer) : 0;
  if (leaf != 0 && own != nullptr) end_range(*tracer->globals, *own, leaf, 0, 0, kNothingMore);
  for (; !calls.stack.empty(); calls.stack.pop()) {
    const uint64_t event_id = event_id_of(calls.stack.back().entry);
    if (event_id != 0 && own != nullptr)
      end_range(*tracer->globals, *own, event_id, 0, 0, kNothingMore);
  }
  calls.forget();
}

// Where the thread's ring is full, others get the GIL until the drain has read some of it: else
// threads that compute in Python leave the drain too little of the GIL to come in time. Once for
// each position that it has read up to: where it doesn't come, as the calling thread drains, say,
// the thread goes on, and what doesn't fit is dropped.
void give_way_to_drain(ThreadCalls& calls) {
  if (calls.buffer == nullptr) return;
  ThreadBuffer& buffer = *calls.buffer;
  const uint64_t room = kRoomOfCall + uint64_t{kEndWords} * (buffer.open_recorded + 1);
  if (buffer.has_room(room)) return;
  const uint64_t read = buffer.consumed.load(std::memory_order_acquire);
  if (calls.gave_way_at == read) return;
  calls.gave_way_at = read;
  Py_BEGIN_ALLOW_THREADS;
  const timespec pause{0, kPauseNs};
  for (int pauses = 0; pauses < kMostPauses && !buffer.has_room(room); ++pauses)
    nanosleep(&pause, nullptr);
  Py_END_ALLOW_THREADS;
}

int enter(ThreadCalls& calls, Begun begun) {
  stack_leaf_of(calls);
  const uint64_t tracing = calls.met_in;
  give_way_to_drain(calls);
  if (!takes_next(calls)) return push(calls, {0, begun.key}, tracing), 0;
  PyObject* const code = reinterpret_cast<PyObject*>(begun.code);
  if (begun.frame == nullptr) begun.frame = PyEval_GetFrame();
  const CallName* name = tracer->names.known(code, begun.instruction);
  if (name == nullptr && begun.frame != nullptr)
    name = tracer->names.of_code(code, begun.frame, begun.instruction);
  if (name == nullptr) {
    if (without_name() < 0) return -1;
    return push(calls, {ThreadCalls::kHidden, begun.key}, tracing), 0;
  }
  if (name->hides == Hides::kNothing) {
    if (!tracer->call_sites) recent_names.keep(code, begun.instruction, name->text);
    return push(calls, {begin(calls, name->text, begun.frame, begun.began_at), begun.key}, tracing),
           0;
  }
  if (name->hides == Hides::kAskFrame)
    return enter_named_by_frame(calls, begun, name->of_frame.get(), tracing);
  if (name->hides == Hides::kAllBelow && calls.met_in == tracing) calls.hide_below();
  push(calls, {ThreadCalls::kHidden, begun.key}, tracing);
  return 0;
}

void enter_c(ThreadCalls& calls, CFunction function) {
  stack_leaf_of(calls);
  const uint64_t tracing = calls.met_in;
  give_way_to_drain(calls);
  if (!takes_next(calls) || hides_next_c_call(calls))
    return push(calls, {ThreadCalls::kOfC, nullptr}, tracing);
  std::string name = CallTexts::of_function(function);
  if (!tracer->call_sites) recent_functions.keep(function, name);
  push(calls, {begin(calls, std::move(name), nullptr) | ThreadCalls::kOfC, nullptr}, tracing);
}

// What a begin needs memory for and doesn't get is not recorded.
template <typename Enter>
int or_dropped(ThreadCalls& calls, Enter enter) {
  int result = 0;
  if (!had_memory_for([&] { result = enter(); })) count_dropped(*calls.buffer);
  return result;
}

// Begins what is on the thread's stack already. Whether it is traced from now on.
bool meet_thread(ThreadCalls& calls, PyFrameObject* innermost) {
  if (!is_recording()) return false;
  const uint64_t tracing = calls.tracing;
  calls.thread = PyThreadState_GetID(PyThreadState_Get());
  const Reference asked(Py_NewRef(tracer->is_own_thread));
  const Reference is_own(call_unseen(asked.get(), nullptr, 0));
  if (!is_own) return without_name(), false;
  if (is_own.get() == Py_None || tracer->tracing != tracing)
    return false;  // None: its name isn't known yet either
  calls.left_out = is_own.get() == Py_True;
  ThreadBuffer* buffer = calls.left_out ? nullptr : registry().current();
  if (buffer == nullptr) return false;
  stack_leaf(*buffer);  // of an earlier tracing: the drain will have it taken away
  const uint64_t began_at =
      open_since(*buffer, calls.thread);  // before the thread enters this recording
  look_around_calls(*tracer->globals, *buffer);
  if (tracer->tracing != tracing) return false;
  calls.buffer = buffer, calls.met_in = tracing;
  PyFrameObject* frames[kMaxStartFrames];
  Py_XINCREF(innermost);
  const int count = stack_of(innermost, frames);
  return enter_stack(calls, frames, count, began_at) == 0 && calls.met_in == tracing;
}

bool was_told_of(uint64_t thread) {
  const auto& all = thread_calls().all();
  return std::any_of(all.begin(), all.end(), [thread](const auto& calls) {
    return calls->thread == thread && calls->tracing == tracer->tracing &&
           (calls->left_out || calls->met_in == tracer->tracing);
  });
}

// Begins one thread's calls, as stand_in_for_blocked_threads does. -1 with the error set.
int stand_in_for(PyThreadState* thread, uint64_t native_id) {
  const uint64_t id = PyThreadState_GetID(thread);
  if (id > tracer->newest_thread || was_told_of(id) || had_other_profile_function(id)) return 0;
  ThreadBuffer* const buffer = registry().stand_in(thread->thread_id, native_id);
  if (buffer == nullptr) return 0;
  ThreadCalls calls;
  calls.buffer = buffer, calls.tracing = calls.met_in = tracer->tracing;
  PyFrameObject* frames[kMaxStartFrames];
  const int result = enter_stack(calls, frames, stack_of(PyThreadState_GetFrame(thread), frames),
                                 tracer->began_at);
  buffer->ended.store(true, std::memory_order_release);
  return result;
}

}  // namespace

std::string call_site(PyFrameObject* called) {
  PyFrameObject* frame = called != nullptr ? PyFrame_GetBack(called) : PyEval_GetFrame();
  if (called == nullptr) Py_XINCREF(frame);
  while (frame != nullptr) {
    const Reference held(reinterpret_cast<PyObject*>(frame)),
        code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    const CallName* line = tracer->names.of_call_site(code.get(), frame, instruction_of(frame));
    if (line == nullptr || !line->text.empty()) return line != nullptr ? line->text : std::string();
    frame = PyFrame_GetBack(frame);
  }
  return {};
}

int enter_slowly(ThreadCalls& calls, Begun begun) {
  return or_dropped(calls, [&] { return enter(calls, begun); });
}

int enter_c_slowly(ThreadCalls& calls, CFunction function) {
  return or_dropped(calls, [&] { return enter_c(calls, function), 0; });
}

// What began in a call that ends is over with it, but for what runs in other greenlets: these end
// calls in any order.
void leave_python_slowly(ThreadCalls& calls, const void* frame) {
  stack_leaf_of(calls);
  OpenCall* left = find_call(calls, frame);
  if (left == nullptr)
    left =
        find_call(calls, PyEval_GetFrame());  // it was on the stack already when its thread was met
  if (left == nullptr) return;
  const bool rest_is_over = left != &calls.stack.back() && !has_greenlets();
  while (rest_is_over && left != &calls.stack.back()) pop(calls);
  while ((calls.stack.back().entry & ThreadCalls::kOfC) != 0) pop(calls);
  std::rotate(left, left + 1, &calls.stack.back() + 1);
  pop(calls);
}

void leave_c_slowly(ThreadCalls& calls) {
  stack_leaf_of(calls);
  size_t left = calls.stack.size();
  while (left > 0 && (calls.stack[left - 1].entry & ThreadCalls::kOfC) == 0)
    left = has_greenlets() ? left - 1 : 0;
  if (left == 0) return;
  std::rotate(&calls.stack[left - 1], &calls.stack[left - 1] + 1, &calls.stack.back() + 1);
  pop(calls);
}

ThreadCalls* meet(PyFrameObject* frame, const void* key) {
  ThreadCalls* const calls = thread_calls().own(tracer->tracing);
  if (calls == nullptr || calls->left_out || tracer->forked) return nullptr;
  const bool is_begun = key != nullptr && frame != nullptr;
  const Reference back(is_begun ? reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)) : nullptr);
  return meet_thread(*calls, is_begun ? reinterpret_cast<PyFrameObject*>(back.get()) : frame)
             ? calls
             : nullptr;
}

int stand_in_for_blocked_threads(PyObject* native_ids) {
  if (!tracer->is_on() || tracer->stood_in_for == tracer->tracing) return 0;
  tracer->stood_in_for = tracer->tracing;
  int result = 0;
  each_thread([&](PyThreadState* thread) {
    const Reference ident(PyLong_FromUnsignedLong(thread->thread_id));
    PyObject* const native_id = ident ? PyDict_GetItem(native_ids, ident.get()) : nullptr;
    if (native_id != nullptr) result = stand_in_for(thread, PyLong_AsUnsignedLongLong(native_id));
    return result == 0;
  });
  return result;
}

void end_all_calls() {
  for (const auto& calls : thread_calls().all()) end_and_forget(*calls);
}

bool end_calls_of(uint64_t thread) {
  bool was_traced = false;
  for (const auto& calls : thread_calls().all()) {
    if (calls->met_in != tracer->tracing || calls->thread != thread) continue;
    end_and_forget(*calls);
    was_traced = true;
  }
  return was_traced;
}

}  // namespace recfn
