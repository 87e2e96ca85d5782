// What a test can ask of the fake compiler and do to it. These symbols are exported
// beside NVRTC's own and found with dlsym.
#ifndef FAKE_NVRTC_CONTROL_H
#define FAKE_NVRTC_CONTROL_H

#pragma GCC visibility push(default)

// fake_reset forgets calls, planned failures, violations and programs.
void fake_reset(void);

// fake_fail makes the k-th call from now of a symbol return code and do nothing else.
// -1: no such symbol, or k < 1.
int fake_fail(const char *symbol, int k, int code);

// fake_calls counts the calls of a symbol, or of all if the name is empty.
// -1: no such symbol.
long long fake_calls(const char *symbol);

// fake_violations is what a correct program would not have done, one line each.
// Free it.
char *fake_violations(void);

// fake_live counts the programs that exist.
int fake_live(void);

#pragma GCC visibility pop

#endif
