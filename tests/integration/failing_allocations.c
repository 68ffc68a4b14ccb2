// Preloaded into a program (LD_PRELOAD): lets chosen allocations of one thread fail, as if memory had run out at that moment.
#include <errno.h>
#include <stddef.h>

extern void* __libc_malloc(size_t size);
extern void* __libc_calloc(size_t count, size_t size);
extern void* __libc_realloc(void* memory, size_t size);

static __thread long allocations_left = -1;  // that still succeed; -1: all do
static __thread long failures_left = 0;
static __thread long failed = 0;
static __thread size_t smallest = 0;

// Of the calling thread's allocations of at least `bytes`, the next `succeed` do, and the `fail` after them don't.
void fail_allocations(long succeed, long fail, size_t bytes) {
  smallest = bytes;
  allocations_left = succeed;
  failures_left = fail;
  failed = 0;
}

// From here on all succeed. Returns how many did not.
long end_of_failures(void) {
  allocations_left = -1;
  return failed;
}

static int fails(size_t size) {
  if (allocations_left < 0 || size < smallest) return 0;
  if (allocations_left > 0) {
    --allocations_left;
    return 0;
  }
  if (failures_left == 0) return 0;
  --failures_left;
  ++failed;
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t size) { return fails(size) ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return fails(count * size) ? NULL : __libc_calloc(count, size); }
void* realloc(void* memory, size_t size) { return fails(size) ? NULL : __libc_realloc(memory, size); }
