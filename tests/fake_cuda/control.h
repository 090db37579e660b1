#pragma once

// What a test that has the fake driver in its own process may call beside the driver's functions (dlsym, C
// linkage).

#ifdef __cplusplus
extern "C" {
#endif

/// Failures from now on, in place of those of before (failures.h); empty or null for none. 1 when not
/// understood.
int wcache_fake_cuda_fail(const char* failures);

/// Calls of that exported function since the process began or was reset, failed ones too; "any": of all of
/// them. ~0 for no such function.
unsigned long long wcache_fake_cuda_calls(const char* function);

/// No calls counted, no failures, no broken context; what is allocated stays.
void wcache_fake_cuda_reset(void);

/// As in a fresh process: what the process had is gone; environment and configuration are read again at the
/// next call.
void wcache_fake_cuda_restart(void);

#ifdef __cplusplus
}
#endif
