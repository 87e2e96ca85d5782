//go:build cgo && linux

package fakenvrtc

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror -I${SRCDIR}/lib
#include "control.h"

// Go cannot call a function pointer of C. f is the function's address.
static int call_live(void *f) { return ((__typeof__(fake_live) *)f)(); }
*/
import "C"

// Live counts the programs that exist.
func (l *Library) Live() int { return int(C.call_live(l.Function("live"))) }
