package shareable

import (
	"context"
	"math"
	"os"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// Ping exchanges HELLO with the store at path and asks for its counts. If the server ends meanwhile, it asks
// the next one.
func (forStore) Ping(ctx context.Context, path string, token []byte, uids []uint32) error {
	if err := checkToken(token); err != nil {
		return err
	}
	return connectFirst(ctx, math.MaxInt, func() error { return ping(ctx, path, token, uids) })
}

func ping(ctx context.Context, path string, token []byte, uids []uint32) error {
	return withStore(ctx, path, uids, func(h *handshake) error {
		hello := wire.Hello{Backend: wire.BackendHost, PID: uint32(os.Getpid())}
		hello.SetToken(token)
		err := h.write(wire.TypeHello, 0, hello.Append(nil))
		if err == nil {
			err = h.write(wire.TypeCount, 1, nil)
		}
		if err == nil {
			_, err = h.readFrame(wire.TypeHello, 0)
		}
		if err == nil {
			_, err = h.readFrame(wire.TypeCounters, 1)
		}
		return err
	})
}

// Keeper returns the process that has made the socket at path, 0 if it cannot be seen from here.
func (forStore) Keeper(ctx context.Context, path string, uids []uint32) (pid int, err error) {
	err = withStore(ctx, path, uids, func(h *handshake) error {
		cred, err := h.c.conn.Cred()
		pid = int(cred.PID)
		return err
	})
	return pid, err
}

// withStore connects to the store at path, checks its user, and calls f. The context alone limits it.
func withStore(ctx context.Context, path string, uids []uint32, f func(*handshake) error) error {
	raw, err := connect(ctx, path, AttachOptions{Timeout: math.MaxInt64})
	if err != nil {
		return err
	}
	c, err := newReaderConn(raw, math.MaxInt64)
	if err != nil {
		return err
	}
	defer c.end()
	h := &handshake{c: c, opts: AttachOptions{UIDs: uids}}
	if uids == nil {
		h.opts.UIDs = defaultOwners()
	}
	return c.start(ctx, func() error {
		if err := h.checkPeer(); err != nil {
			return err
		}
		return f(h)
	}, nil)
}
