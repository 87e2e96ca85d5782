package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/ledger"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// clientOf makes a Client of a store that has a socket.
func clientOf(t *testing.T, s *Server) *Client {
	t.Helper()
	return clientOn(t, vmmtest.Device(t), s)
}

// clientOn is clientOf on a device of the caller's.
func clientOn(t *testing.T, dev *vmm.Device, s *Server) *Client {
	t.Helper()
	c, err := Connect(t.Context(), s.Path(), dev, ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// writer makes an object.
func writer(t *testing.T, c *Client, name string, o CreateOptions) *Writer {
	t.Helper()
	w, err := c.Create(t.Context(), name, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// writerSoon is writer for a test whose freed memory may still count, because a client has not closed its
// descriptor yet.
func writerSoon(t *testing.T, c *Client, name string, o CreateOptions) *Writer {
	t.Helper()
	var w *Writer
	require.Eventually(t, func() (made bool) {
		var err error
		w, err = c.Create(t.Context(), name, o)
		return err == nil
	}, inTime, step)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// sealed makes an object of these bytes.
func sealed(t *testing.T, c *Client, name string, data []byte) ID {
	t.Helper()
	w, err := c.Create(t.Context(), name, CreateOptions{Size: uint64(max(len(data), 1))})
	require.NoError(t, err)
	require.NoError(t, w.Append(data))
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, w.Close())
	return w.ID()
}

// got maps an object.
func got(t *testing.T, c *Client, name string, o GetOptions) *shareable.View {
	t.Helper()
	b, err := c.Get(t.Context(), name, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// contents reads all of a View.
func contents(t *testing.T, b *shareable.View) []byte {
	t.Helper()
	data := make([]byte, b.Len())
	if len(data) > 0 {
		_, err := b.ReadAt(data, 0)
		require.NoError(t, err)
	}
	return data
}

// within is a context that does not last for ever.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), inTime)
	t.Cleanup(cancel)
	return ctx
}

// TestFieldsGoThroughTheStore: Writer and View have the fields that Create was called with, and
// they count against the server's own memory.
func TestFieldsGoThroughTheStore(t *testing.T) {
	t.Parallel()
	c := clientOf(t, listening(t, Options{}))
	layout, err := growable.LayoutOf[struct {
		ID    int64
		Score [2]float32
	}]()
	require.NoError(t, err)
	require.NotEmpty(t, layout.Dtype)
	w := writer(t, c, "f", CreateOptions{Size: 1000, Layout: layout, Durable: true})
	require.NoError(t, w.Layout().Check(layout))
	require.NoError(t, got(t, c, "f", GetOptions{Unsafe: true}).Layout().Check(layout))
	plain, described := wire.Create{}, wire.Create{Elem: elemOf(layout)}
	require.Equal(t, uint64(len(layout.Dtype)), recordsOf(described)[ledger.Records]-recordsOf(plain)[ledger.Records])
	layout.Dtype = "{}"
	_, err = c.Create(t.Context(), "g", CreateOptions{Size: 1000, Layout: layout})
	require.ErrorIs(t, err, vmm.ErrInvalid)
}

// TestObjectFromCreateToDelete: create, write, seal, get by name and by ID, delete, over a socket
// and in process.
func TestObjectFromCreateToDelete(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	dev := vmmtest.Device(t)
	inside, err := s.Connect(t.Context(), dev, ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, inside.Close()) })
	for name, c := range map[string]*Client{"socket": clientOf(t, s), "inside": inside} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, s.Instance(), c.Instance())
			data := bytesOf(100_000)
			layout, err := growable.LayoutOf[byte]()
			require.NoError(t, err)
			w := writer(t, c, "a/b", CreateOptions{Size: 100_000, Meta: []byte("meta"), Layout: layout, Labels: map[string]string{"k": "v", "a": ""}})
			require.Equal(t, "a/b", w.Name())
			require.Equal(t, s.Instance(), w.ID().Instance)
			require.Equal(t, []byte("meta"), w.Meta())
			require.True(t, w.Layout().Equal(layout))
			require.GreaterOrEqual(t, w.Cap(), uint64(100_000))
			require.NotZero(t, w.Ptr())
			require.NoError(t, w.Append(data[:60_000]))
			require.NoError(t, w.Flush(t.Context()))
			info, err := c.Stat(t.Context(), "a/b")
			require.NoError(t, err)
			require.WithinDuration(t, time.Now(), info.Created, inTime)
			info.Created = time.Time{}
			require.Equal(t, uint32(os.Getuid()), info.Owner)
			info.Owner = 0
			require.Equal(t, Info{
				ID: w.ID(), Names: []string{"a/b"}, Labels: map[string]string{"k": "v", "a": ""}, Len: 60_000, Cap: w.Cap(), Max: w.Max(), Leased: true,
			}, info)
			require.NoError(t, w.Append(data[60_000:]))
			require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{Digest: true}))
			require.ErrorIs(t, w.Err(), shareable.ErrSealed)
			require.ErrorIs(t, w.Append(data), shareable.ErrSealed)
			require.ErrorIs(t, w.Seal(t.Context(), shareable.SealOptions{}), shareable.ErrSealed)
			require.ErrorIs(t, w.Abort(t.Context()), shareable.ErrSealed)

			for _, name := range []string{"a/b", w.ID().String(), wire.IDName(w.ID().Number)} {
				b := got(t, c, name, GetOptions{})
				require.Equal(t, data, contents(t, b))
				require.Equal(t, w.ID(), IDOf(b))
				require.Equal(t, name, b.Name())
				require.True(t, b.Sealed())
				require.False(t, b.Writable())
				require.NoError(t, b.Err())
				require.Equal(t, vmm.LocationDevice, b.Location().Kind)
				require.Equal(t, []byte("meta"), b.Meta())
				require.True(t, b.Layout().Equal(layout))
				digest, ok := b.Digest()
				require.True(t, ok)
				require.Equal(t, sha256.Sum256(data), digest)
				_, err := b.WriteAt(data, 0)
				require.ErrorIs(t, err, vmm.ErrPermission)
				require.NoError(t, b.Close())
				require.ErrorIs(t, b.Err(), vmm.ErrClosed)
				_, err = b.WriteAt(data, 0)
				require.ErrorIs(t, err, vmm.ErrClosed)
			}
			require.NoError(t, w.Close())
			require.ErrorIs(t, w.Err(), vmm.ErrClosed)
			require.ErrorIs(t, w.Flush(t.Context()), vmm.ErrClosed)
			b := got(t, c, "a/b", GetOptions{})
			require.NoError(t, c.Delete(t.Context(), "a/b", DeleteOptions{}))
			_, err = c.Get(t.Context(), "a/b", GetOptions{})
			require.ErrorIs(t, err, shareable.ErrNotFound)
			require.Equal(t, data, contents(t, b)) // its memory goes with the last that has it
			require.NoError(t, b.Close())
			require.Eventually(t, func() bool { return s.Stats().Bytes == 0 }, inTime, step)
		})
	}
}

// TestRefusals: what the arguments and the state of an object do not allow.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	ctx := t.Context()
	dev := vmmtest.Device(t)
	w := writer(t, c, "w", CreateOptions{Size: 100})
	sealed(t, c, "s", []byte("sealed"))
	node, below := 0, -1
	long := string(make([]byte, 300))
	other := ID{Instance: [16]byte{1}, Number: w.ID().Number}
	labels := map[string]string{}
	for i := range wire.MaxLabels + 1 {
		labels[fmt.Sprint(i)] = ""
	}
	create := func(name string, o CreateOptions) func() error {
		return func() error { _, err := c.Create(ctx, name, o); return err }
	}
	get := func(name string, o GetOptions) func() error {
		return func() error { _, err := c.Get(ctx, name, o); return err }
	}
	add := func(name string) func() error {
		return func() error { _, err := c.Append(ctx, name, AppendOptions{}); return err }
	}
	for name, x := range map[string]struct {
		call func() error
		want error
	}{
		"create without size":    {create("x", CreateOptions{}), vmm.ErrInvalid},
		"create a bad name":      {create("a..b", CreateOptions{Size: 1}), vmm.ErrInvalid},
		"create a long name":     {create(long, CreateOptions{Size: 1}), vmm.ErrInvalid},
		"create the form of IDs": {create("@1", CreateOptions{Size: 1}), vmm.ErrInvalid},
		"create a name twice":    {create("w", CreateOptions{Size: 1}), vmm.ErrBusy},
		"create too large":       {create("x", CreateOptions{Size: 1 << 60}), vmm.ErrLimit},
		"create too much meta":   {create("x", CreateOptions{Size: 1, Meta: make([]byte, wire.MaxMeta+1)}), vmm.ErrInvalid},
		"create a bad layout":    {create("x", CreateOptions{Size: 1, Layout: vmm.Layout{Bits: 7}}), vmm.ErrInvalid},
		"create a bad node":      {create("x", CreateOptions{Size: 1, Host: &below}), vmm.ErrInvalid},
		"create on a node":       {create("x", CreateOptions{Size: 1, Host: &node}), vmm.ErrNotSupported},
		"create labels":          {create("x", CreateOptions{Size: 1, Labels: labels}), vmm.ErrInvalid},
		"create a bad label":     {create("x", CreateOptions{Size: 1, Labels: map[string]string{"": ""}}), vmm.ErrInvalid},
		"create a long label":    {create("x", CreateOptions{Size: 1, Labels: map[string]string{"a": long}}), vmm.ErrInvalid},
		"get nothing":            {get("x", GetOptions{}), shareable.ErrNotFound},
		"get a bad name":         {get("", GetOptions{}), vmm.ErrInvalid},
		"get a bad ID":           {get("@x", GetOptions{}), vmm.ErrInvalid},
		"get another's ID":       {get(other.String(), GetOptions{Unsafe: true}), shareable.ErrNotFound},
		"wait for another's ID":  {get(other.String(), GetOptions{Wait: true}), shareable.ErrNotFound},
		"get unsealed":           {get("w", GetOptions{}), shareable.ErrNotSealed},
		"get to write, safely":   {get("w", GetOptions{Write: true}), vmm.ErrInvalid},
		"write to sealed":        {get("s", GetOptions{Write: true, Unsafe: true}), vmm.ErrPermission},
		"append to nothing":      {add("x"), shareable.ErrNotFound},
		"append to leased":       {add("w"), vmm.ErrBusy},
		"append to sealed":       {add("s"), shareable.ErrSealed},
		"append, another's ID":   {add(other.String()), shareable.ErrNotFound},
		"stat nothing":           {func() error { _, err := c.Stat(ctx, "x"); return err }, shareable.ErrNotFound},
		"stat another's ID":      {func() error { _, err := c.Stat(ctx, other.String()); return err }, shareable.ErrNotFound},
		"list a bad prefix":      {func() error { _, err := c.List(ctx, ListOptions{Prefix: "a b"}); return err }, vmm.ErrInvalid},
		"list by bad labels":     {func() error { _, err := c.List(ctx, ListOptions{Labels: labels}); return err }, vmm.ErrInvalid},
		"link nothing":           {func() error { return c.Link(ctx, "x", "y") }, shareable.ErrNotFound},
		"link as taken":          {func() error { return c.Link(ctx, "w", "s") }, vmm.ErrBusy},
		"link as a bad name":     {func() error { return c.Link(ctx, "w", "a b") }, vmm.ErrInvalid},
		"unlink nothing":         {func() error { return c.Unlink(ctx, "x") }, shareable.ErrNotFound},
		"unlink a bad name":      {func() error { return c.Unlink(ctx, "") }, vmm.ErrInvalid},
		"delete nothing":         {func() error { return c.Delete(ctx, "x", DeleteOptions{}) }, shareable.ErrNotFound},
		"delete nothing, forced": {func() error { return c.Delete(ctx, "x", DeleteOptions{Force: true}) }, shareable.ErrNotFound},
		"delete another's ID":    {func() error { return c.Delete(ctx, other.String(), DeleteOptions{}) }, shareable.ErrNotFound},
		"force another's ID":     {func() error { return c.Delete(ctx, other.String(), DeleteOptions{Force: true}) }, shareable.ErrNotFound},
		"delete before now":      {func() error { return c.Delete(ctx, "w", DeleteOptions{Timeout: -1}) }, vmm.ErrInvalid},
		"watch a bad prefix":     {func() error { _, err := c.Watch(ctx, "a b"); return err }, vmm.ErrInvalid},
		"connect to nothing":     {func() error { _, err := Connect(ctx, s.Path()+"x", dev, ClientOptions{}); return err }, shareable.ErrOwnerGone},
		"connect without device": {func() error { _, err := Connect(ctx, s.Path(), nil, ClientOptions{}); return err }, vmm.ErrInvalid},
		"connect, bad timeout":   {func() error { _, err := Connect(ctx, s.Path(), dev, ClientOptions{Timeout: -1}); return err }, vmm.ErrInvalid},
		"connect, long token": {func() error {
			_, err := Connect(ctx, s.Path(), dev, ClientOptions{Token: make([]byte, 33)})
			return err
		}, vmm.ErrInvalid},
		"connect, no context":   {func() error { _, err := Connect(nil, s.Path(), dev, ClientOptions{}); return err }, vmm.ErrInvalid}, //nolint:staticcheck // a nil context is what is tested
		"another user's server": {func() error { _, err := Connect(ctx, s.Path(), dev, ClientOptions{UIDs: []uint32{12345}}); return err }, vmm.ErrPermission},
		"shrink":                {func() error { return errors.Join(w.Append([]byte("xy")), w.Flush(ctx), w.SetLen(1)) }, vmm.ErrBusy},
		"close the range":       {func() error { return w.Range().Close() }, vmm.ErrBusy},
		"grow beyond":           {func() error { return w.Grow(w.Max() + 1) }, vmm.ErrFull},
		"flush without context": {func() error { return w.Flush(nil) }, vmm.ErrInvalid}, //nolint:staticcheck // a nil context is what is tested
		"abort without context": {func() error { return w.Abort(nil) }, vmm.ErrInvalid}, //nolint:staticcheck // a nil context is what is tested
		"parse an ID":           {func() error { _, err := ParseID(w.ID().String()[1:]); return err }, vmm.ErrInvalid},
		"parse a short ID":      {func() error { _, err := ParseID("@1:ab"); return err }, vmm.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, x.call(), x.want) })
	}
	require.Equal(t, 2, s.Stats().Objects) // none of this made one
	require.NoError(t, w.Err())
}

// TestIDs: an ID is a text and back.
func TestIDs(t *testing.T) {
	t.Parallel()
	id := ID{Instance: [16]byte{1, 15: 0xff}, Number: 12}
	require.Equal(t, "@12:010000000000000000000000000000ff", id.String())
	b, err := id.MarshalText()
	require.NoError(t, err)
	var back ID
	require.NoError(t, back.UnmarshalText(b))
	require.Equal(t, id, back)
}

// TestGrowing: a growable object, and a View of it that follows.
func TestGrowing(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "g", CreateOptions{Size: 64 << 20, Growable: true})
	require.Zero(t, w.Len())
	b := got(t, c, "g", GetOptions{Unsafe: true})
	var want []byte
	for i := range 40 {
		part := bytesOf(i * 5000)
		want = append(want, part...)
		require.NoError(t, w.Append(part))
	}
	require.NoError(t, b.Wait(within(t), uint64(len(want))))
	require.Equal(t, want, contents(t, b))
	require.NoError(t, w.Grow(20<<20))
	require.NoError(t, w.Range().Clip())
	require.Less(t, w.Cap(), uint64(20<<20))
	require.NoError(t, w.Append(bytesOf(9<<20))) // what was clipped comes again
	want = append(want, bytesOf(9<<20)...)
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, b.Wait(within(t), uint64(len(want))))
	require.Equal(t, want, contents(t, b))
	require.Equal(t, want, contents(t, got(t, c, "g", GetOptions{})))
}

// TestVector: a Vector on a Writer's range publishes, and a Reader on a View follows it.
func TestVector(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	layout, err := growable.LayoutOf[float32]()
	require.NoError(t, err)
	w := writer(t, c, "v", CreateOptions{Size: 1 << 24, Growable: true, Durable: true, Layout: layout})
	v, err := growable.FromRange[float32](w.Range())
	require.NoError(t, err)
	r, err := growable.NewReader[float32](got(t, c, "v", GetOptions{Unsafe: true}))
	require.NoError(t, err)
	for i := range 1000 {
		require.NoError(t, v.Append(float32(i), float32(-i)))
	}
	require.NoError(t, r.Wait(within(t), 2000))
	x, err := r.At(1999)
	require.NoError(t, err)
	require.Equal(t, float32(-999), x)
	require.NoError(t, w.Close())

	again, err := c.Append(t.Context(), "v", AppendOptions{})
	require.NoError(t, err)
	v, err = growable.FromRange[float32](again.Range())
	require.NoError(t, err)
	require.Equal(t, 2000, v.Len())
	require.NoError(t, v.Append(7))
	require.NoError(t, again.Close())
	require.NoError(t, r.Wait(within(t), 2001))
	x, err = r.At(2000)
	require.NoError(t, err)
	require.Equal(t, float32(7), x)
}

// TestUnsafeWrite: a View that was asked for writing, of an object that is not sealed.
func TestUnsafeWrite(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "u", CreateOptions{Size: 1000})
	require.NoError(t, w.SetLen(1000))
	require.NoError(t, w.Flush(t.Context()))
	b := got(t, c, "u", GetOptions{Unsafe: true, Write: true})
	require.True(t, b.Writable())
	require.False(t, b.Sealed())
	n, err := b.WriteAt([]byte("by a reader"), 7)
	require.NoError(t, err)
	require.Equal(t, 11, n)
	_, err = b.WriteAt([]byte("by a reader"), 990)
	require.ErrorIs(t, err, vmm.ErrBounds)
	_, err = b.WriteAt(nil, 990)
	require.NoError(t, err)
	p := make([]byte, 11)
	_, err = w.Range().ReadAt(p, 7)
	require.NoError(t, err)
	require.Equal(t, "by a reader", string(p))
}

// TestListing: List, Stat, Link, Unlink and Stats.
func TestListing(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	ctx := t.Context()
	var ids []ID
	for i := range 300 {
		w := writer(t, c, fmt.Sprintf("list/%d/%0200d", i%2, i), CreateOptions{Size: 1, Labels: map[string]string{"odd": fmt.Sprint(i % 2), "n": ""}})
		ids = append(ids, w.ID())
	}
	unnamed := writer(t, c, "", CreateOptions{Size: 1})
	all, err := c.List(ctx, ListOptions{})
	require.NoError(t, err)
	require.Len(t, all, 301)
	require.True(t, slices.IsSortedFunc(all, func(a, b Info) int { return int(a.ID.Number) - int(b.ID.Number) }))
	some, err := c.List(ctx, ListOptions{Prefix: "list/1/"})
	require.NoError(t, err)
	require.Len(t, some, 150)
	require.Equal(t, ids[1], some[0].ID)
	same, err := c.List(ctx, ListOptions{Labels: map[string]string{"odd": "1", "n": ""}})
	require.NoError(t, err)
	require.Equal(t, some, same)
	none, err := c.List(ctx, ListOptions{Labels: map[string]string{"even": ""}})
	require.NoError(t, err)
	require.Empty(t, none)

	info, err := c.Stat(ctx, unnamed.ID().String())
	require.NoError(t, err)
	require.Equal(t, unnamed.ID(), info.ID)
	require.Empty(t, info.Names)
	require.NoError(t, c.Link(ctx, unnamed.ID().String(), "named"))
	require.NoError(t, c.Link(ctx, "named", "too"))
	info, err = c.Stat(ctx, "too")
	require.NoError(t, err)
	require.Equal(t, []string{"named", "too"}, info.Names)
	require.NoError(t, c.Unlink(ctx, "named"))
	_, err = c.Stat(ctx, "named")
	require.ErrorIs(t, err, shareable.ErrNotFound)
	x, err := c.Stats(ctx)
	require.NoError(t, err)
	want := s.Stats()
	want.Conns = shareable.Stats{}
	require.Equal(t, want, x)
}

// TestAbort: of an object that was aborted nothing is left, and those who wait for it know.
func TestAbort(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	w := writer(t, c, "a", CreateOptions{Size: 1000, Durable: true})
	waiter := make(chan error, 1)
	go func() { _, err := c.Get(within(t), "a", GetOptions{Wait: true}); waiter <- err }()
	require.Eventually(t, func() bool { return s.Stats().Waits == 1 }, inTime, step)
	require.NoError(t, w.Abort(t.Context()))
	require.ErrorIs(t, <-waiter, shareable.ErrAborted)
	require.ErrorIs(t, w.Abort(t.Context()), vmm.ErrClosed)
	require.ErrorIs(t, w.Append([]byte("x")), vmm.ErrClosed)
	_, err := c.Stat(t.Context(), "a")
	require.ErrorIs(t, err, shareable.ErrNotFound)
	require.Zero(t, s.Stats().Bytes)
}

// TestReattachFindsByName: the next server's object of the name, not one that has the number of the
// old one.
func TestReattachFindsByName(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "socket")
	serve := func(names ...string) *Server {
		s, err := Listen(vmmtest.Device(t), path, Options{})
		require.NoError(t, err)
		c, err := Connect(t.Context(), path, vmmtest.Device(t), ClientOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, errors.Join(c.Close(), s.Close())) })
		for _, name := range names {
			w, err := c.Create(t.Context(), name, CreateOptions{Growable: true})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, w.Close()) })
		}
		return s
	}
	s := serve("x", "y")
	c, err := Connect(t.Context(), path, vmmtest.Device(t), ClientOptions{})
	require.NoError(t, err)
	defer c.Close()
	info, err := c.Stat(t.Context(), "x")
	require.NoError(t, err)
	byName := got(t, c, "x", GetOptions{Unsafe: true})
	byID := got(t, c, info.ID.String(), GetOptions{Unsafe: true})
	require.NoError(t, s.Close())
	for _, v := range []*shareable.View{byName, byID} {
		require.Eventually(t, func() bool { return v.Err() != nil }, inTime, step)
	}
	serve("y", "x")
	next, fresh, err := shareable.Reattach(t.Context(), byName)
	require.NoError(t, err)
	defer next.Close()
	require.True(t, fresh)
	require.Equal(t, "x", next.Name())
	info, err = clientAt(t, path).Stat(t.Context(), "x")
	require.NoError(t, err)
	require.Equal(t, info.ID, IDOf(next))
	_, _, err = shareable.Reattach(t.Context(), byID)
	require.Error(t, err, "an ID is of one server")
}

// clientAt is a client of the server at path.
func clientAt(t *testing.T, path string) *Client {
	t.Helper()
	c, err := Connect(t.Context(), path, vmmtest.Device(t), ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// TestGetWaitsForUnsealed: with Unsafe a Get waits for the object alone, and not for its seal,
// whoever comes first: also for a name that is given later, and after another one had it.
func TestGetWaitsForUnsealed(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	got := map[bool]chan error{true: make(chan error), false: make(chan error)}
	get := func(name string) {
		for unsafe, done := range got {
			before := s.Stats().Waits
			go func() {
				b, err := c.Get(within(t), name, GetOptions{Wait: true, Unsafe: unsafe})
				done <- errors.Join(err, b.Close())
			}()
			require.Eventually(t, func() bool { return s.Stats().Waits == before+1 }, inTime, step)
		}
	}
	get("made")
	w := writer(t, c, "made", CreateOptions{Growable: true, Durable: true})
	require.NoError(t, <-got[true])
	require.Equal(t, 1, s.Stats().Waits, "that for the seal")
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, <-got[false])

	w = writer(t, c, "", CreateOptions{Growable: true})
	get("linked")
	require.NoError(t, c.Link(t.Context(), w.ID().String(), "linked"))
	require.NoError(t, <-got[true])
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, <-got[false])
	require.Zero(t, s.Stats().Waits)
}

// TestClientsZeroValues: no method of a nil pointer, or of a zero value, panics, and those that
// return an error return one, but for closing what was never open.
func TestClientsZeroValues(t *testing.T) {
	t.Parallel()
	for _, zero := range []any{&Client{}, (*Client)(nil), &Keeper{}, (*Keeper)(nil), &Writer{}, (*Writer)(nil), (*Server)(nil), &Server{}} {
		v := reflect.ValueOf(zero)
		for i := range v.NumMethod() {
			m := v.Type().Method(i)
			t.Run(fmt.Sprintf("%T%v.%s", zero, v.IsNil(), m.Name), func(t *testing.T) {
				args := []reflect.Value{v}
				for n := 1; n < m.Type.NumIn(); n++ {
					switch in := m.Type.In(n); in {
					case reflect.TypeFor[context.Context]():
						args = append(args, reflect.ValueOf(context.Background()))
					case reflect.TypeFor[*vmm.MemoryArg](): // what is written
						args = append(args, reflect.New(in.Elem()))
					default:
						args = append(args, reflect.Zero(in))
					}
				}
				var out []reflect.Value
				require.NotPanics(t, func() { out = m.Func.Call(args) })
				if len(out) == 0 || m.Type.Out(len(out)-1) != reflect.TypeFor[error]() {
					return
				}
				err, _ := out[len(out)-1].Interface().(error)
				if m.Name == "Close" {
					require.NoError(t, err)
				} else {
					require.Error(t, err)
				}
			})
		}
	}
}
