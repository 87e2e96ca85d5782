package shareable

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// smallStore is a store with nothing but objects by name. A test is the writer itself.
type smallStore struct {
	t       *testing.T
	dev     *vmm.Device
	srv     *Server
	objects serve.Server

	mu      sync.Mutex
	request func(serve.Conn, wire.Frame) error // of a test; nil refuses
	byName  map[string]serve.Object
	conns   map[serve.Conn]bool // that have requested something
	seen    int                 // calls of Readers
}

func newSmallStore(t *testing.T, o Options) *smallStore {
	t.Helper()
	s := &smallStore{t: t, dev: pageDevice(t), byName: map[string]serve.Object{}, conns: map[serve.Conn]bool{}}
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	var err error
	s.srv, s.objects, err = forStore{}.NewStore(s.dev, o, s)
	require.NoError(t, err)
	require.NoError(t, s.objects.Listen(socketAt(t)))
	t.Cleanup(func() {
		for _, o := range s.byName {
			require.NoError(t, o.Close())
		}
		require.NoError(t, s.srv.Close())
	})
	return s
}

func (s *smallStore) Request(c serve.Conn, f wire.Frame) error {
	s.mu.Lock()
	s.conns[c] = true
	request := s.request
	s.mu.Unlock()
	if request == nil {
		return c.Refuse(f.Request, vmm.ErrNotSupported)
	}
	return request(c, f)
}

// on has requests handled.
func (s *smallStore) on(request func(serve.Conn, wire.Frame) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.request = request
}

func (s *smallStore) clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *smallStore) Idle(serve.Conn) bool { return false }

func (s *smallStore) End(c serve.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *smallStore) Find(name string) serve.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byName[name]
}

func (s *smallStore) Readers(serve.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen++
}

// object makes "x" with room for so many chunks of a page.
func (s *smallStore) object(chunks uint64) *storedX {
	s.t.Helper()
	o := s.objects.NewObject(serve.Spec{Max: chunks * smallChunk, Meta: []byte("rows")})
	s.objects.Listed(o, "x")
	s.mu.Lock()
	s.byName["x"] = o
	s.mu.Unlock()
	return &storedX{Object: o, s: s}
}

// memory is a descriptor of new memory, as a store keeps it.
func (s *smallStore) memory(size uint64) int {
	s.t.Helper()
	c, err := s.dev.Create(size, vmm.Prop{Share: vmm.ShareFD})
	require.NoError(s.t, err)
	fd, err := c.Export()
	require.NoError(s.t, err)
	require.NoError(s.t, c.Close())
	return fd
}

func (s *smallStore) attach(o AttachOptions) *View {
	s.t.Helper()
	v, err := Attach(s.t.Context(), s.srv.Path(), "x", pageDevice(s.t), o)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, v.Close()) })
	return v
}

// storedX is an object of a smallStore, with its memory mapped for a writer.
type storedX struct {
	serve.Object
	s   *smallStore
	mem []byte
}

// grow adds n chunks of a page.
func (x *storedX) grow(n int) {
	t := x.s.t
	t.Helper()
	for range n {
		fd := x.s.memory(smallChunk)
		b, err := unix.Mmap(fd, 0, smallChunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		at := len(x.mem)
		copy(b, pattern(at, smallChunk))
		require.NoError(t, unix.Munmap(b))
		x.mem = append(x.mem, pattern(at, smallChunk)...)
		require.NoError(t, x.AddChunk(smallChunk, fd))
		_, last := x.Chunks()
		x.Show(last)
	}
}

// page is a writer's page that is not sealed yet.
func (x *storedX) page() serve.WriterPage {
	t := x.s.t
	t.Helper()
	fd, err := x.LeasePage()
	require.NoError(t, err)
	w, err := forStore{}.OpenWriterPage(fd, x.s.srv.Instance(), x.ID())
	require.NoError(t, err)
	require.NoError(t, unix.Close(fd))
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// lease is the page of a writer whose lease has started.
func (x *storedX) lease() serve.WriterPage {
	x.s.t.Helper()
	w := x.page()
	require.NoError(x.s.t, x.StartLease())
	return w
}

// own is the object behind the seam.
func (x *storedX) own() *storeObject {
	o, ok := x.Object.(*storeObject)
	require.True(x.s.t, ok)
	return o
}

func (x *storedX) length() uint64 {
	_, n, _, _ := x.State()
	return n
}

func (x *storedX) readers() int {
	_, _, _, n := x.State()
	return n
}

// pageOf is the control page that the view looks at.
func pageOf(v *View) *readerPage {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.page
}

// pageAfter waits until the view looks at another page than before.
func pageAfter(t *testing.T, v *View, before *readerPage) {
	t.Helper()
	soon(t, "another page", func() bool { return pageOf(v) != before })
}
