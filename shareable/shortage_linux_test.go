package shareable

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// TestShortage: it begins with what is lacking first, and ends with that, or with chunks.
func TestShortage(t *testing.T) {
	t.Parallel()
	cause := errors.New("why")
	for _, c := range []struct {
		lacks []wire.Type
		had   wire.Type
		ends  bool
	}{
		{[]wire.Type{wire.TypeChunks}, wire.TypeChunks, true},
		{[]wire.Type{wire.TypeChunks}, wire.TypePage, false},
		{[]wire.Type{wire.TypeChunks}, wire.TypeObject, false},
		{[]wire.Type{wire.TypePage}, wire.TypePage, true},
		{[]wire.Type{wire.TypePage}, wire.TypeObject, false},
		{[]wire.Type{wire.TypeObject}, wire.TypeObject, true},
		{[]wire.Type{wire.TypeObject}, wire.TypeChunks, true},
		{[]wire.Type{wire.TypePage, wire.TypeChunks}, wire.TypePage, true},
		{[]wire.Type{wire.TypeChunks, wire.TypePage}, wire.TypePage, false},
	} {
		s := shortage{limit: time.Hour}
		for _, what := range c.lacks {
			s.lacks(what)
		}
		require.NoError(t, s.over(cause))
		for want := time.Millisecond; want < maxShortPause; want *= 2 {
			require.Equal(t, want, s.nextPause())
		}
		require.Equal(t, maxShortPause, s.nextPause())
		require.Equal(t, maxShortPause, s.nextPause())
		s.since = s.since.Add(-2 * time.Hour)
		s.lacks(wire.TypeChunks) // no new beginning
		require.ErrorIs(t, s.over(cause), cause)
		require.ErrorContains(t, s.over(cause), "no descriptor was free within 1h")
		s.had(c.had)
		require.Equal(t, c.ends, s.since.IsZero(), "%v, and then %v", c.lacks, c.had)
		require.Equal(t, time.Hour, s.limit)
	}
}

// shortTime is the Timeout of a View that lacks descriptors, and mostTries is more than it tries in that.
const (
	shortTime = 100 * time.Millisecond
	mostTries = 25
)

// noImport has every import fail as if no descriptor were free.
func noImport(c drivertest.Call) error {
	if c.Name == "Import" {
		return vmm.ErrLimit
	}
	return nil
}

// TestViewShortBesidePages: a page that comes with each try does not begin the time anew.
func TestViewShortBesidePages(t *testing.T) {
	t.Parallel()
	s, far := newScriptedOwner(t, 1)
	v := viewedOn(t, s, far, AttachOptions{Timeout: shortTime}, pageDevice(t, noImport))
	s.grow(1)
	c, fds := s.records(0, 1)
	defer unix.Close(fds[0]) //nolint:errcheck // in a test
	s.part(c, fds, 0, 1)
	for tries := 0; ; tries++ {
		require.Less(t, tries, mostTries)
		f, err := s.c.Read()
		if err != nil {
			require.True(t, disconnected(err), "%v", err)
			break
		}
		require.Equal(t, wire.TypeResync, f.Type)
		_ = s.c.Write(wire.TypePage, 0, 0, wire.Page{Object: s.obj.ID}.Append(nil), s.pages[0])
		_ = s.c.Write(wire.TypeChunks, 0, 0, c.Append(nil), fds[0])
	}
	require.ErrorIs(t, ended(t, v), vmm.ErrLimit)
	require.ErrorContains(t, ended(t, v), "no descriptor was free within 100ms")
}

// TestViewShortAcrossConnections: the time runs on when the owner has enough of it first, and another one is
// there at once. What is lacking is room for a chunk, or for the page of the next connection. Not parallel:
// it limits this process's descriptors.
func TestViewShortAcrossConnections(t *testing.T) {
	for what, chunk := range map[string]bool{"a chunk": true, "a connection": false} {
		t.Run(what, func(t *testing.T) {
			s, _ := newScriptedOwner(t, 1)
			s.kept = true
			path := socketAt(t)
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
			require.NoError(t, err)
			s.grow(1)
			c, fds := s.records(0, 1)
			defer unix.Close(fds[0]) //nolint:errcheck // in a test
			dev := pageDevice(t, noImport)
			got := make(chan *View, 1)
			go func() {
				v, err := Attach(t.Context(), path, scriptName, dev, AttachOptions{Timeout: shortTime})
				require.NoError(t, err)
				got <- v
			}()
			accept := func() error {
				conn, err := l.AcceptUnix()
				if err == nil {
					s.c, err = wire.NewConn(conn)
				}
				return err
			}
			require.NoError(t, accept())
			s.accept()
			v := <-got
			over := make(chan error, 1)
			go func() {
				over <- v.Wait(t.Context(), v.Max())
				_ = l.Close()
			}()
			restore := leaveFDs(t, viewFDs+2)
			defer restore()
			for tries := 0; ; tries++ {
				require.Less(t, tries, mostTries)
				if chunk {
					_ = s.c.Write(wire.TypeChunks, 0, 0, c.Append(nil), fds[0])
					_, _ = s.c.Read() // RESYNC
					_ = s.c.Write(wire.TypeError, 0, 0, wire.Error{Code: wire.CodeTooSlow, Text: "too slow"}.Append(nil))
				}
				_ = s.c.Close()
				if accept() != nil {
					break
				}
				var taken []int
				for fd, err := 0, error(nil); !chunk && err == nil; {
					if fd, err = unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0); err == nil {
						taken = append(taken, fd)
					}
				}
				s.accept()
				if !chunk {
					s.gone() // it had no room for the page
				}
				for _, fd := range taken {
					require.NoError(t, unix.Close(fd))
				}
			}
			err = <-over
			require.ErrorIs(t, err, vmm.ErrLimit)
			require.ErrorContains(t, err, "no descriptor was free within 100ms")
			require.NoError(t, v.Close())
		})
	}
}
