package shareable

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Ping is for package store: it exchanges HELLO with the store at path and asks for its counts.
func Ping(ctx context.Context, path string, token []byte, uids []uint32) error {
	if len(token) > tokenSize {
		return errToken(token)
	}
	limit := defaultTimeout
	if end, ok := ctx.Deadline(); ok {
		limit = time.Until(end)
	}
	raw, err := connect(ctx, path, AttachOptions{Timeout: limit})
	if err != nil {
		return err
	}
	c, err := newReaderConn(raw, limit)
	if err != nil {
		return err
	}
	defer c.end()
	return c.start(ctx, func() error {
		cred, err := c.conn.Cred()
		if err != nil {
			return err
		}
		if uids == nil {
			uids = []uint32{uint32(os.Getuid()), 0}
		}
		if !slices.Contains(uids, cred.UID) {
			return fmt.Errorf("%w: the other side is user %d", vmm.ErrPermission, cred.UID)
		}
		hello := wire.Hello{Backend: wire.BackendHost, PID: uint32(os.Getpid())}
		hello.HasToken = copy(hello.Token[:], token) > 0
		if err := c.write(wire.TypeHello, 0, hello.Append(nil)); err != nil && !disconnected(err) { // else what it has sent says why
			return wireError(err)
		}
		if err := c.write(wire.TypeCount, 1, nil); err != nil && !disconnected(err) {
			return wireError(err)
		}
		h := handshake{c: c}
		for _, want := range []struct {
			t       wire.Type
			request uint32
		}{{wire.TypeHello, 0}, {wire.TypeCounters, 1}} {
			if _, err := h.readFrame(want.t, want.request); err != nil {
				return err
			}
		}
		return nil
	}, nil)
}
