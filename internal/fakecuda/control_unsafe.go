//go:build cgo && linux

package fakecuda

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror -I${SRCDIR}/lib
#cgo LDFLAGS: -ldl
#include "control.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// functions is the control functions of one loaded library, by their names there
// without "fake_".
struct functions {
	void *library;
	void (*reset)(void);
	void (*configure)(int devices, unsigned long long bytes);
	int (*fail)(const char *symbol, int k, int code);
	long long (*calls)(const char *symbol);
	char *(*last)(const char *symbol);
	char *(*violations)(void);
	void (*live)(struct fake_count *out);
	void (*lose)(void);
	void (*link)(int from, int to, int kind);
	int (*pause)(const char *symbol);
	int (*paused)(void);
	int (*foreign)(int device, unsigned long long n, unsigned char *memory, unsigned char *event, unsigned char *token);
	void (*end)(void);
};

// load opens the library and finds its functions. It returns NULL, or why not.
static const char *load(struct functions *f, const char *path) {
	f->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (f->library == NULL)
		return dlerror();
#define FIND(name) \
	do { \
		void *at = dlsym(f->library, "fake_" #name); \
		if (at == NULL) { \
			dlclose(f->library); \
			return "there is no fake_" #name; \
		} \
		memcpy(&f->name, &at, sizeof at); \
	} while (0)
	FIND(reset);
	FIND(configure);
	FIND(fail);
	FIND(calls);
	FIND(last);
	FIND(violations);
	FIND(live);
	FIND(lose);
	FIND(link);
	FIND(pause);
	FIND(paused);
	FIND(foreign);
	FIND(end);
	return NULL;
}

static int unload(const struct functions *f) { return dlclose(f->library); }

// Go cannot call a function pointer of C.
static void call_reset(const struct functions *f) { f->reset(); }
static void call_configure(const struct functions *f, int devices, unsigned long long bytes) { f->configure(devices, bytes); }
static int call_fail(const struct functions *f, const char *symbol, int k, int code) { return f->fail(symbol, k, code); }
static long long call_calls(const struct functions *f, const char *symbol) { return f->calls(symbol); }
static char *call_last(const struct functions *f, const char *symbol) { return f->last(symbol); }
static char *call_violations(const struct functions *f) { return f->violations(); }
static void call_live(const struct functions *f, struct fake_count *out) { f->live(out); }
static void call_lose(const struct functions *f) { f->lose(); }
static void call_link(const struct functions *f, int from, int to, int kind) { f->link(from, to, kind); }
static int call_pause(const struct functions *f, const char *symbol) { return f->pause(symbol); }
static int call_paused(const struct functions *f) { return f->paused(); }
static int call_foreign(const struct functions *f, int device, unsigned long long n, unsigned char *memory, unsigned char *event, unsigned char *token) {
	return f->foreign(device, n, memory, event, token);
}
static void call_end(const struct functions *f) { f->end(); }
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// control calls the control functions of one loaded library.
type control struct{ f C.struct_functions }

// openControl loads the library at path. One that is loaded already is the same
// one. The caller must close it.
//
// Safety: C keeps neither the name nor a Go pointer.
func openControl(path string) (*control, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	// The loader's text belongs to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := &control{}
	if why := C.load(&c.f, name); why != nil {
		return nil, errors.New(C.GoString(why))
	}
	return c, nil
}

// close unloads the library, which stays as long as others have it open.
func (c *control) close() error {
	if C.unload(&c.f) != 0 {
		return errors.New("the loader cannot close it")
	}
	return nil
}

// Reset forgets everything except that the driver is initialised.
func (c *control) Reset() { C.call_reset(&c.f) }

// Configure resets, and sets how many devices there are and their memory size.
func (c *control) Configure(devices int, bytes uint64) {
	C.call_configure(&c.f, C.int(devices), C.ulonglong(bytes))
}

// fail makes the k-th call from now of symbol, or of any if it is empty, return
// code and do nothing else.
func (c *control) fail(symbol string, k, code int) error {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	if C.call_fail(&c.f, name, C.int(k), C.int(code)) != 0 {
		return fmt.Errorf("fail call %d of %q: no such symbol, or no such call", k, symbol)
	}
	return nil
}

// Calls counts the calls of symbol, or of all if it is empty: -1 if there is no
// such symbol.
func (c *control) Calls(symbol string) int {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	return int(C.call_calls(&c.f, name))
}

// Last is the last call of symbol with its arguments: empty if there was none.
func (c *control) Last(symbol string) string {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	return goText(C.call_last(&c.f, name))
}

// Violations lists what a correct program would not have done, one line each.
func (c *control) Violations() string { return goText(C.call_violations(&c.f)) }

// Live counts what exists.
func (c *control) Live() Live {
	var n C.struct_fake_count
	C.call_live(&c.f, &n)
	return Live{
		Handles: int(n.handles), Reservations: int(n.reservations), Mappings: int(n.mappings),
		Contexts: int(n.contexts), Peers: int(n.peers), Streams: int(n.streams), Events: int(n.events),
		Graphs: int(n.graphs), GraphExecs: int(n.execs), Modules: int(n.modules),
		Plain: int(n.plain), Pinned: int(n.pinned), Pools: int(n.pools), Pushed: int(n.pushed),
	}
}

// Lose makes each call that needs a context, of any device, return an illegal
// address from now on.
func (c *control) Lose() { C.call_lose(&c.f) }

// Pause holds calls of symbol back until the next Pause. An empty symbol holds
// none back.
func (c *control) Pause(symbol string) error {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	if C.call_pause(&c.f, name) != 0 {
		return fmt.Errorf("pause %q: no such symbol", symbol)
	}
	return nil
}

// Paused counts the calls that are held back.
func (c *control) Paused() int { return int(C.call_paused(&c.f)) }

// Link sets the link between two devices, in one direction.
func (c *control) Link(from, to int, kind Link) {
	C.call_link(&c.f, C.int(from), C.int(to), C.int(kind))
}

// foreign makes another process, and returns a descriptor of its pool.
//
// Safety: each slice has 64 bytes, and C keeps none of them.
func (c *control) foreign(dev int, n uint64, f *Foreign) int {
	at := func(b *[64]byte) *C.uchar { return (*C.uchar)(unsafe.Pointer(b)) }
	return int(C.call_foreign(&c.f, C.int(dev), C.ulonglong(n), at(&f.Memory), at(&f.Event), at(&f.Token)))
}

// End ends all other processes. Their events can be opened still.
func (c *control) End() { C.call_end(&c.f) }

// goText copies a text of the library's and frees it.
//
// Safety: the text is from malloc, ends with a zero, and has no other owner.
func goText(text *C.char) string {
	defer C.free(unsafe.Pointer(text))
	return C.GoString(text)
}
