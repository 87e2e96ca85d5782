package wire

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzFrame decodes a packet, as what it says it is and as everything else.
// What is taken says the same in the same bytes.
func FuzzFrame(f *testing.F) {
	for _, k := range kinds {
		f.Add(k.frame(k.full.Append(nil)))
	}
	f.Add(kind{of: TypeDone}.frame(nil))
	f.Add(kind{of: TypeCount}.frame(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, packet []byte) {
		var payload []byte
		if h, err := DecodeHeader(packet); err == nil {
			payload = packet[HeaderSize:]
			require.Equal(t, packet[:HeaderSize], h.Append(nil))
			require.Len(t, payload, int(h.Len))
			require.LessOrEqual(t, len(packet), MaxFrame)
			require.LessOrEqual(t, h.FDs, uint16(MaxFDs))
		} else {
			require.ErrorAs(t, err, new(*ProtocolError))
			payload = packet[min(len(packet), HeaderSize):]
		}
		for _, k := range kinds {
			got, err := k.decode(payload)
			if err != nil {
				require.ErrorAs(t, err, new(*ProtocolError))
				continue
			}
			require.Equal(t, payload, got.Append(nil), "%v", k.of)
		}
	})
}

// book is what a Tracker should know, kept in the plainest way.
type book struct {
	object, gen, used, last uint64
	chunks                  []Chunk // announced
	mapped                  int
	fresh                   []Chunk // of the last frame that was taken
}

const (
	bookPage  = 16
	bookMax   = 64 * bookPage
	bookQuota = 48 * bookPage
	bookMost  = 12
)

func (b *book) end() uint64 {
	end := uint64(0)
	for _, c := range b.chunks[:b.mapped] {
		end += c.Size
	}
	return end
}

// takes reports whether a frame may come, and with which chunks it leaves the book.
func (b *book) takes(c Chunks) ([]Chunk, bool) {
	if c.Object != b.object || c.Generation != b.gen || len(c.Records) == 0 {
		return nil, false
	}
	all := slices.Clone(b.chunks)
	at := slices.IndexFunc(all, func(k Chunk) bool { return k.ID == c.Records[0].ID })
	if at < 0 {
		at = len(all)
	}
	if at > b.mapped {
		return nil, false
	}
	used := b.used
	for _, r := range c.Records {
		if at == len(all) {
			end := uint64(0)
			for _, k := range all {
				end += k.Size
			}
			if r.ID <= used || r.Offset != end || r.Size == 0 || r.Size%bookPage != 0 || r.Size > bookQuota || end+r.Size > bookQuota {
				return nil, false
			}
			all, used = append(all, r), r.ID
		} else if all[at] != r {
			return nil, false
		}
		at++
	}
	return all, len(all) <= bookMost
}

func (b *book) retires(r Retire) ([]Chunk, bool) {
	if r.Object != b.object || r.Generation <= b.gen || r.Capacity > bookMax {
		return nil, false
	}
	var left []Chunk
	for i, k := range b.chunks {
		if k.Offset+k.Size <= r.Capacity {
			left = append(left, k)
		} else if i < b.mapped && k.Offset < r.Capacity {
			return nil, false
		}
	}
	return left, true
}

// next is a frame of n chunks that may follow, from the place from on.
func (b *book) next(from, n int, size uint64) Chunks {
	c := Chunks{Object: b.object, Generation: b.gen}
	end, id := uint64(0), b.used
	for _, k := range b.chunks {
		end += k.Size
	}
	for i := from; i < from+n; i++ {
		if i < len(b.chunks) {
			c.Records = append(c.Records, b.chunks[i])
			continue
		}
		id += 1 + size%3
		c.Records = append(c.Records, Chunk{id, end, bookPage * (1 + size%4)})
		end += c.Records[len(c.Records)-1].Size
	}
	return c
}

// check compares the tracker with the book, and both with what always holds.
func (b *book) check(t *testing.T, k *Tracker) {
	t.Helper()
	known := k.known()
	require.Equal(t, some(b.chunks[:b.mapped]), some(known))
	require.Equal(t, b.end(), k.End())
	require.Equal(t, b.gen, k.Generation())
	require.Equal(t, b.last, k.LastID())
	require.LessOrEqual(t, k.End(), uint64(bookQuota))
	require.LessOrEqual(t, len(known), bookMost)
	end, id := uint64(0), uint64(0)
	for _, c := range known {
		require.Greater(t, c.ID, id)
		require.Equal(t, end, c.Offset)
		end, id = c.Offset+c.Size, c.ID
	}
}

// FuzzTracker sends a tracker frames, right and wrong ones, and compares it
// with a book. Four bytes are one step: which, two arguments, and what is
// changed in a frame that was right.
func FuzzTracker(f *testing.F) {
	f.Add([]byte("\x00\x00\x02\x00\x01\x01\x00\x00\x00\x01\x02\x00\x01\x09\x00\x00"))
	f.Add([]byte("\x00\x03\x01\x00\x01\x02\x00\x00\x02\x01\x02\x00\x01\x05\x00\x00\x03\x01\x00\x00\x00\x02\x00\x00"))
	f.Add([]byte("\x00\x00\x01\x00\x01\x01\x00\x00\x00\x00\x01\x05\x00\x00\x02\x0a\x00\x00\x02\x0f\x03\x00\x00\x03\x04\x20\x00\x00"))
	f.Add([]byte("\x00\x01\x01\x00\x01\x00\x00\x00\x03\x02\x00\x00\x02\x00\x03\x00\x00\x00\x01\x14\x04\x0b\x00\x00"))
	for seed := range uint64(8) {
		random, steps := rand.New(rand.NewPCG(seed, 0)), make([]byte, 400)
		for i := range steps {
			steps[i] = byte(random.Uint32())
			if i%4 == 3 && random.IntN(3) > 0 {
				steps[i] = 0
			}
		}
		f.Add(steps)
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		k, err := NewTracker(Object{ID: 7, Max: bookMax, Generation: 3},
			Limits{Granularity: bookPage, Quota: bookQuota, MaxChunks: bookMost})
		require.NoError(t, err)
		b := &book{object: 7, gen: 3}
		for ; len(steps) >= 4; steps = steps[4:] {
			b.step(t, k, steps[0]%5, int(steps[1]), int(steps[2]), steps[3])
			b.check(t, k)
		}
	})
}

func (b *book) step(t *testing.T, k *Tracker, which byte, x, y int, change byte) {
	t.Helper()
	switch which {
	case 0: // more, or what could not be mapped again
		b.send(t, k, b.next(b.mapped, x%4+1, uint64(y)), change)
	case 1:
		n := x%6 - 1
		k.Mapped(n)
		if n = min(n, len(b.fresh)); n > 0 {
			b.mapped = max(b.mapped, 1+slices.Index(b.chunks, b.fresh[n-1]))
			b.last = max(b.last, b.chunks[b.mapped-1].ID)
		}
	case 2: // what a RESYNC brings
		b.send(t, k, b.next(x%(len(b.chunks)+1), y%5+1, uint64(x)), change)
	case 3, 4:
		r := Retire{Object: b.object, Generation: b.gen + 1, Capacity: uint64(x) * bookPage}
		if n := x % (len(b.chunks) + 1); which == 3 {
			r.Capacity = 0
			for _, c := range b.chunks[:n] {
				r.Capacity += c.Size
			}
		}
		switch change % 8 {
		case 1:
			r.Generation--
		case 2:
			r.Generation += uint64(y)
		case 3:
			r.Capacity += uint64(y)
		case 4:
			r.Object += uint64(y)
		}
		left, ok := b.retires(r)
		keep, from, err := k.Retire(r)
		require.Equal(t, ok, err == nil, "%+v: %v", r, err)
		if !ok {
			return
		}
		b.chunks, b.gen, b.fresh = left, r.Generation, nil
		b.mapped = min(b.mapped, len(left))
		require.Equal(t, b.mapped, keep)
		require.Equal(t, b.end(), from)
	}
}

// send changes a frame and compares what becomes of it.
func (b *book) send(t *testing.T, k *Tracker, c Chunks, change byte) {
	t.Helper()
	r := &c.Records[int(change>>4)%len(c.Records)]
	switch change & 15 {
	case 1:
		r.ID++
	case 2:
		r.ID--
	case 3:
		r.Offset += bookPage
	case 4:
		r.Offset -= bookPage
	case 5:
		r.Size = 0
	case 6:
		r.Size++
	case 7:
		r.Size += bookPage
	case 8:
		r.Size = 1 << 63
	case 9:
		r.Size = -r.Offset
	case 10:
		c.Object++
	case 11:
		c.Generation++
	case 12:
		c.Generation--
	case 13:
		slices.Reverse(c.Records)
	case 14:
		c.Records = append(c.Records, *r)
	}
	all, ok := b.takes(c)
	fresh, skip, err := k.Chunks(c)
	require.Equal(t, ok, err == nil, "%+v after %+v, %d mapped: %v", c, b.chunks, b.mapped, err)
	if !ok {
		require.True(t, errors.As(err, new(*ProtocolError)) || errors.Is(err, ErrLimit))
		return
	}
	require.Equal(t, some(c.Records[skip:]), some(fresh))
	for _, r := range c.Records[:skip] {
		require.Contains(t, b.chunks[:b.mapped], r)
	}
	for _, r := range fresh {
		require.NotContains(t, b.chunks[:b.mapped], r)
	}
	b.chunks, b.fresh = all, fresh
	if n := len(all); n > 0 {
		b.used = max(b.used, all[n-1].ID)
	}
}
