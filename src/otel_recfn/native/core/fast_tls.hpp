// A thread_local that is read on the hot path: without a call, where the platform's loader allows it.
#pragma once

#if defined(__linux__)
#define RECFN_FAST_TLS __attribute__((tls_model("initial-exec")))
#else
#define RECFN_FAST_TLS
#endif
