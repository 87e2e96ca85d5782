//go:build cgo && linux

package fakenccl

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror -I${SRCDIR}/lib
#include "control.h"

// Go cannot call a function pointer of C. f is the function's address.
static char *call_log(void *f) { return ((__typeof__(fake_log) *)f)(); }
static void call_polls(void *f, int n) { ((__typeof__(fake_polls) *)f)(n); }
static int call_kill(void *f, int rank, int code) { return ((__typeof__(fake_kill) *)f)(rank, code); }
static int call_live(void *f, int what) { return ((__typeof__(fake_live) *)f)(what); }
*/
import "C"

import (
	"unsafe"

	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
)

// Polls makes all that is begun from now on stay in progress for n polls, and with -1 for
// ever.
func (l *Library) Polls(n int) { C.call_polls(l.Function("polls"), C.int(n)) }

// Kill ends a rank of every group, as if its process had ended. The others get that
// asynchronous error; with 0 they get none. Then what they begin counts as queued, if an operation
// has run before; else it waits. It returns how many it has ended.
func (l *Library) Kill(rank, code int) int {
	return int(C.call_kill(l.Function("kill"), C.int(rank), C.int(code)))
}

// Log lists the calls of communicators with their arguments, one line each.
//
// Safety: the text is from malloc and has no other owner.
func (l *Library) Log() string { return fakelib.Text(unsafe.Pointer(C.call_log(l.Function("log")))) }

// Live counts what exists.
func (l *Library) Live() Live {
	f := l.Function("live")
	return Live{
		Comms: int(C.call_live(f, 0)), Registrations: int(C.call_live(f, 1)),
		Windows: int(C.call_live(f, 2)), Waiting: int(C.call_live(f, 3)),
	}
}
