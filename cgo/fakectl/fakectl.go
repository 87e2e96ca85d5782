//go:build cgo && linux

// Package fakectl calls the control functions of the fake CUDA driver that
// internal/fakecuda builds. It is for the tests of this module, and stands here
// because only packages below cgo speak C.
package fakectl

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror -I${SRCDIR}/../../internal/fakecuda/lib
#include "control.h"

#include <stdlib.h>

static void call_reset(void *f) { ((void (*)(void))f)(); }
static void call_configure(void *f, int devices, unsigned long long bytes) {
	((void (*)(int, unsigned long long))f)(devices, bytes);
}
static int call_fail(void *f, const char *symbol, int k, int code) {
	return ((int (*)(const char *, int, int))f)(symbol, k, code);
}
static long long call_calls(void *f, const char *symbol) { return ((long long (*)(const char *))f)(symbol); }
static char *call_last(void *f, const char *symbol) { return ((char *(*)(const char *))f)(symbol); }
static char *call_violations(void *f) { return ((char *(*)(void))f)(); }
static void call_live(void *f, struct fake_count *out) { ((void (*)(struct fake_count *))f)(out); }
static void call_lose(void *f) { ((void (*)(void))f)(); }
static int call_pause(void *f, const char *symbol) { return ((int (*)(const char *))f)(symbol); }
static int call_paused(void *f) { return ((int (*)(void))f)(); }
static void call_link(void *f, int from, int to, int kind) { ((void (*)(int, int, int))f)(from, to, kind); }
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cuvmm/cuvmm/cgo/internal/dl"
)

// Control reaches one loaded fake driver.
type Control struct {
	lib *dl.Library

	reset, configure, fail, calls, last, violations, living, losing, linking, pausing, waiting unsafe.Pointer
}

// Open finds the control functions of the library at path. Opening a library
// that is loaded already gives the same one. The caller must Close it.
func Open(path string) (*Control, error) {
	lib, err := dl.Open(path)
	if err != nil {
		return nil, err
	}
	c := &Control{lib: lib}
	for name, at := range map[string]*unsafe.Pointer{
		"fake_reset": &c.reset, "fake_configure": &c.configure, "fake_fail": &c.fail, "fake_calls": &c.calls,
		"fake_last": &c.last, "fake_violations": &c.violations, "fake_live": &c.living, "fake_lose": &c.losing,
		"fake_link": &c.linking, "fake_pause": &c.pausing, "fake_paused": &c.waiting,
	} {
		if *at, err = lib.Sym(name); err != nil {
			return nil, errors.Join(err, lib.Close())
		}
	}
	return c, nil
}

// Close forgets the library, which stays as long as others have it open.
func (c *Control) Close() error { return c.lib.Close() }

// Reset forgets all but that the driver is initialised.
func (c *Control) Reset() { C.call_reset(c.reset) }

// Configure resets, and sets how many devices there are, of what size.
func (c *Control) Configure(devices int, bytes uint64) {
	C.call_configure(c.configure, C.int(devices), C.ulonglong(bytes))
}

// Fail makes the k-th call from now of symbol, or of any if it is empty, answer
// code and do nothing else.
func (c *Control) Fail(symbol string, k, code int) error {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	if C.call_fail(c.fail, name, C.int(k), C.int(code)) != 0 {
		return fmt.Errorf("fail call %d of %q: no such symbol, or no such call", k, symbol)
	}
	return nil
}

// Calls counts the calls of symbol, or of all if it is empty: -1 if there is no
// such symbol.
func (c *Control) Calls(symbol string) int {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	return int(C.call_calls(c.calls, name))
}

// Last is the last call of symbol with its arguments: empty if there was none.
func (c *Control) Last(symbol string) string {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	return take(C.call_last(c.last, name))
}

// Violations is what a correct program would not have done, one line each.
func (c *Control) Violations() string { return take(C.call_violations(c.violations)) }

// Live counts what is alive.
func (c *Control) Live() Live {
	var n C.struct_fake_count
	C.call_live(c.living, &n)
	return Live{
		Handles: int(n.handles), Reservations: int(n.reservations), Mappings: int(n.mappings),
		Contexts: int(n.contexts), Peers: int(n.peers), Streams: int(n.streams), Events: int(n.events), Graphs: int(n.graphs),
		Plain: int(n.plain), Pinned: int(n.pinned), Pushed: int(n.pushed),
	}
}

// Lose makes what needs a context, of any device, answer an illegal address.
func (c *Control) Lose() { C.call_lose(c.losing) }

// Pause holds calls of symbol back until the next Pause; an empty one is of none.
func (c *Control) Pause(symbol string) error {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	if C.call_pause(c.pausing, name) != 0 {
		return fmt.Errorf("pause %q: no such symbol", symbol)
	}
	return nil
}

// Paused counts the calls that are held back.
func (c *Control) Paused() int { return int(C.call_paused(c.waiting)) }

// Link sets what is between two devices, in one direction.
func (c *Control) Link(from, to int, kind Link) {
	C.call_link(c.linking, C.int(from), C.int(to), C.int(kind))
}

// take copies a text of the library's and frees it.
//
// Safety: the text is from malloc, ends with a zero, and is nobody else's.
func take(text *C.char) string {
	defer C.free(unsafe.Pointer(text))
	return C.GoString(text)
}
