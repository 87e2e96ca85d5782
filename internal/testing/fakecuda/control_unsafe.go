//go:build cgo && linux

package fakecuda

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror -I${SRCDIR}/lib
#include "control.h"

#include <stdlib.h>

// Go cannot call a function pointer of C. f is the function's address.
static void call_configure(void *f, int devices, unsigned long long bytes) { ((__typeof__(fake_configure) *)f)(devices, bytes); }
static char *call_last(void *f, const char *symbol) { return ((__typeof__(fake_last) *)f)(symbol); }
static void call_live(void *f, struct fake_count *out) { ((__typeof__(fake_live) *)f)(out); }
static void call_lose(void *f) { ((__typeof__(fake_lose) *)f)(); }
static void call_link(void *f, int from, int to, int kind) { ((__typeof__(fake_link) *)f)(from, to, kind); }
static int call_pause(void *f, const char *symbol) { return ((__typeof__(fake_pause) *)f)(symbol); }
static int call_paused(void *f) { return ((__typeof__(fake_paused) *)f)(); }
static int call_foreign(void *f, int device, unsigned long long n, unsigned char *memory, unsigned char *event, unsigned char *token) {
	return ((__typeof__(fake_foreign) *)f)(device, n, memory, event, token);
}
static void call_end(void *f) { ((__typeof__(fake_end) *)f)(); }
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/cuvmm/cuvmm/internal/testing/fakelib"
)

// Configure resets, and sets how many devices there are and their memory size.
func (l *Library) Configure(devices int, bytes uint64) {
	C.call_configure(l.Function("configure"), C.int(devices), C.ulonglong(bytes))
}

// Last is the last call of symbol with its arguments: empty if there was none.
func (l *Library) Last(symbol string) string {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	return fakelib.Text(unsafe.Pointer(C.call_last(l.Function("last"), name)))
}

// Live counts what exists.
func (l *Library) Live() Live {
	var n C.struct_fake_count
	C.call_live(l.Function("live"), &n)
	return Live{
		Handles: int(n.handles), Reservations: int(n.reservations), Mappings: int(n.mappings),
		Contexts: int(n.contexts), Peers: int(n.peers), Streams: int(n.streams), Events: int(n.events),
		Graphs: int(n.graphs), GraphExecs: int(n.execs), Modules: int(n.modules),
		Plain: int(n.plain), Pinned: int(n.pinned), Pools: int(n.pools), Pushed: int(n.pushed),
	}
}

// Lose makes each call that needs a context, of any device, return an illegal
// address from now on.
func (l *Library) Lose() { C.call_lose(l.Function("lose")) }

// Pause holds calls of symbol back until the next Pause. An empty symbol holds
// none back.
func (l *Library) Pause(symbol string) error {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	if C.call_pause(l.Function("pause"), name) != 0 {
		return fmt.Errorf("pause %q: no such symbol", symbol)
	}
	return nil
}

// Paused counts the calls that are held back.
func (l *Library) Paused() int { return int(C.call_paused(l.Function("paused"))) }

// Link sets the link between two devices, in one direction.
func (l *Library) Link(from, to int, kind Link) {
	C.call_link(l.Function("link"), C.int(from), C.int(to), C.int(kind))
}

// foreign makes another process, and returns a descriptor of its pool.
//
// Safety: each slice has 64 bytes, and C keeps none of them.
func (l *Library) foreign(dev int, n uint64, f *Foreign) int {
	at := func(b *[64]byte) *C.uchar { return (*C.uchar)(unsafe.Pointer(b)) }
	return int(C.call_foreign(l.Function("foreign"), C.int(dev), C.ulonglong(n), at(&f.Memory), at(&f.Event), at(&f.Token)))
}

// End ends all other processes. Their events can be opened still.
func (l *Library) End() { C.call_end(l.Function("end")) }
