// Preloaded into a program (LD_PRELOAD): lets allocations fail at random, as if memory ran out now and then.
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

extern void* __libc_malloc(size_t size);
extern void* __libc_calloc(size_t count, size_t size);
extern void* __libc_realloc(void* memory, size_t size);

static atomic_uint one_in = 0;  // of so many allocations one fails; 0: none does
static atomic_ulong failed = 0;
static atomic_size_t smallest = 0;
static atomic_uint seed = 1;  // of the next thread
static _Thread_local size_t smallest_here = 0;
static _Thread_local unsigned state = 0;

// Which allocations fail depends on it, and on when threads come to run.
void begin_by_chance(unsigned given) { atomic_store(&seed, given); }

// From here on, in all threads, of those of at least so many bytes; 0 for none. Returns how many have failed.
unsigned long fail_one_in(unsigned count, size_t bytes) {
  atomic_store(&smallest, bytes);
  atomic_store(&one_in, count);
  return atomic_load(&failed);
}

// In the calling thread also of those of at least so many.
void spare_below(size_t bytes) { smallest_here = bytes; }

static int fails(size_t size) {
  const unsigned count = atomic_load_explicit(&one_in, memory_order_relaxed);
  if (count == 0 || size < atomic_load_explicit(&smallest, memory_order_relaxed) || size < smallest_here) return 0;
  if (state == 0) state = atomic_fetch_add(&seed, 0x9e3779b9u) | 1;
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  if (state % count != 0) return 0;
  atomic_fetch_add(&failed, 1);
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t size) { return fails(size) ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return fails(count * size) ? NULL : __libc_calloc(count, size); }
void* realloc(void* memory, size_t size) { return fails(size) ? NULL : __libc_realloc(memory, size); }
