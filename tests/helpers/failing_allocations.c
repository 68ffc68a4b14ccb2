// Preloaded into a program (LD_PRELOAD): lets allocations fail, as if memory ran out for a moment.
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

extern void* __libc_malloc(size_t size);
extern void* __libc_calloc(size_t count, size_t size);
extern void* __libc_realloc(void* memory, size_t size);

static atomic_size_t smallest = 0;  // smaller allocations succeed
static atomic_ulong failed = 0;

// One by one: the n-th allocation of the chosen thread, or of all threads but that one.
enum { NOWHERE, HERE, ELSEWHERE };
static atomic_int where = NOWHERE;
static atomic_long left = 0;  // allocations up to the one that fails
static _Thread_local int is_chosen = 0;

// By chance, in all threads: one of `one_in` fails.
static atomic_uint one_in = 0;
static atomic_uint seed = 1;  // of the next thread
static _Thread_local unsigned state = 0;
static _Thread_local size_t smallest_of_thread = 0;

// From now on the n-th allocation of at least so many bytes fails: in the calling thread, or in all
// others together.
void fail_nth(long n, size_t bytes, int here) {
  is_chosen = 1;
  atomic_store(&smallest, bytes);
  atomic_store(&failed, 0);
  atomic_store(&left, n);
  atomic_store(&where, here ? HERE : ELSEWHERE);
}

// From now on one of so many allocations of at least so many bytes fails, in all threads.
void fail_one_in(unsigned count, size_t bytes, unsigned first_seed) {
  atomic_store(&smallest, bytes);
  atomic_store(&seed, first_seed);
  atomic_store(&one_in, count);
}

// Only larger ones fail in the calling thread.
void spare_below(size_t bytes) { smallest_of_thread = bytes; }

// From now on all succeed. Returns how many have failed.
unsigned long stop_failing(void) {
  atomic_store(&where, NOWHERE);
  atomic_store(&one_in, 0);
  return atomic_load(&failed);
}

static int is_nth(void) {
  const int counted = atomic_load_explicit(&where, memory_order_relaxed);
  if (counted == NOWHERE || (counted == HERE) != is_chosen) return 0;
  return atomic_fetch_sub(&left, 1) == 1;
}

static int is_drawn(size_t size) {
  const unsigned count = atomic_load_explicit(&one_in, memory_order_relaxed);
  if (count == 0 || size < smallest_of_thread) return 0;
  if (state == 0) state = atomic_fetch_add(&seed, 0x9e3779b9u) | 1;
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state % count == 0;
}

static int fails(size_t size) {
  if (size < atomic_load_explicit(&smallest, memory_order_relaxed)) return 0;
  if (!is_nth() && !is_drawn(size)) return 0;
  atomic_fetch_add(&failed, 1);
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t size) { return fails(size) ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) {
  return fails(count * size) ? NULL : __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  return fails(size) ? NULL : __libc_realloc(memory, size);
}
