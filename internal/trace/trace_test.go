package trace

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
)

const card = 139 * gib

func TestGenerators(t *testing.T) {
	for _, g := range Generators {
		t.Run(g.Name, func(t *testing.T) {
			for _, peak := range testgate.Effort([]uint64{gib}, []uint64{gib, card / 10 * 6}, []uint64{gib, card / 10 * 6}) {
				tr := g.Make(7, peak)
				require.NoError(t, check(tr))
				require.True(t, slices.Equal(tr.Ops, g.Make(7, peak).Ops), "the same seed makes another trace")
				require.False(t, slices.Equal(tr.Ops, g.Make(8, peak).Ops), "another seed makes the same trace")
				require.LessOrEqual(t, tr.Peak(), peak)
				require.Greater(t, tr.Peak(), peak/100*99)

				var least, most uint64 = maxSize, 0
				syncs := 0
				for _, o := range tr.Ops {
					switch o.Kind {
					case Alloc:
						least, most = min(least, o.Size), max(most, o.Size)
					case Sync:
						syncs++
					}
				}
				t.Logf("peak %d: %d operations, %d syncs, %d streams, blocks of %d to %d bytes",
					tr.Peak(), len(tr.Ops), syncs, tr.Streams, least, most)
				require.Positive(t, syncs)
				require.Greater(t, tr.Streams, 2)
				require.LessOrEqual(t, len(tr.Ops), 400_000)
			}
		})
	}
}

// On a large card the sizes are those of real programs: scaling changes little.
func TestScaleIsSmall(t *testing.T) {
	for seed := range uint64(3) {
		for i, first := range []uint64{2 * vocab * hidden, 2 * 32000 * serveHidden} {
			tr := Generators[i].Make(seed, card/10*6)
			require.InDelta(t, 1, float64(tr.Ops[0].Size)/float64(first), 0.4, "%s, seed %d", tr.Name, seed)
		}
	}
}

// written is the trace as RMM writes it, without waits. Blocks lie where no other ever does.
func written(t *Trace) string {
	var b strings.Builder
	fmt.Fprintln(&b, header)
	sizes := make([]uint64, t.Blocks)
	for _, o := range t.Ops {
		if o.Kind == Sync {
			continue
		}
		action := "free"
		if o.Kind == Alloc {
			action = "allocate"
			sizes[o.Block] = o.Size
		}
		fmt.Fprintf(&b, "7,23:59:59.999999,%s,0x%x,%d,0x%x\n", action, 0x7f00<<32+uint64(o.Block), sizes[o.Block], 0x5500+int(o.Stream))
	}
	return b.String()
}

func TestRead(t *testing.T) {
	for _, g := range testgate.Effort(Generators[:1], Generators, Generators) {
		want := g.Make(3, gib)
		got, err := Read(strings.NewReader(written(want)), g.Name)
		require.NoError(t, err)
		require.Equal(t, []any{want.Name, want.Streams, want.Blocks}, []any{got.Name, got.Streams, got.Blocks})
		require.Equal(t, want.Peak(), got.Peak())
		streams := map[uint8]uint8{} // they are numbered as they appear
		i := 0
		for _, o := range want.Ops {
			if o.Kind == Sync {
				continue
			}
			if _, ok := streams[o.Stream]; !ok {
				streams[o.Stream] = uint8(len(streams))
			}
			o.Stream = streams[o.Stream]
			if i >= len(got.Ops) || got.Ops[i] != o { // a call of require for each takes long
				require.Failf(t, "another operation", "%s, operation %d is not %v", g.Name, i, o)
			}
			i++
		}
		require.Len(t, got.Ops, i)
	}
}

// What RMM writes beside blocks that lie somewhere.
func TestReadLeavesOut(t *testing.T) {
	got, err := Read(strings.NewReader(header+`
140,12:00:00.000001,allocate,(nil),0,0
140,12:00:00.000002,allocate,0x7f0000,5,0x55aa
140,12:00:00.000003,allocate failure,(nil),99,0x77
141,12:00:00.000004,free,(nil),0,0
141,12:00:00.000005,free,0x7f0000,5,0
`), "x")
	require.NoError(t, err)
	require.Equal(t, []Op{{Kind: Alloc, Size: 5}, {Kind: Free, Stream: 1}}, got.Ops)
	require.Equal(t, []int{2, 1}, []int{got.Streams, got.Blocks})
}

// What is left at the end is freed in the order in which it was allocated.
func TestReadFreesTheRest(t *testing.T) {
	got, err := Read(strings.NewReader(header+`
1,t,allocate,0x30,7,0x5
1,t,allocate,0x20,8,0x6
1,t,allocate,0x10,9,0x5
1,t,free,0x20,8,0x6
`), "x")
	require.NoError(t, err)
	require.NoError(t, check(got))
	require.Equal(t, []Op{{Kind: Free, Block: 0}, {Kind: Free, Block: 2}}, got.Ops[4:])
}

func TestReadRefuses(t *testing.T) {
	const one = "\n1,t,allocate,0x10,8,0"
	many := header
	for i := range maxStreams + 1 {
		many += fmt.Sprintf("\n1,t,allocate,%#x,8,%#x", 16*i, i)
	}
	for text, want := range map[string]string{
		"":     "no operation",
		header: "no operation",
		"Action,Pointer,Size,Stream\nallocate,0x10,8,0\nfree,0x10,8,0\n": "line 1",
		header + one + "\n1,t,free,0x10,8,0\n1,t,free,0x10,8,0":          "operation 3: cannot \"free\" 8 bytes at 0x10",
		header + one + "\n1,t,free,0x10,9,0":                             "cannot \"free\" 9 bytes at 0x10",
		header + one + one:                                               "0x10 is block 0 already",
		header + "\n1,t,free,0x10,8,0":                                   "cannot \"free\" 8 bytes",
		header + "\n1,t,allocate,0x10,17592186044417,0":                  "17592186044417 bytes",
		header + "\n1,t,allocate,0x10,-1,0":                              "\"-1\": invalid",
		header + "\n1,t,allocate,0x10,8,default":                         "\"default\": invalid",
		header + "\n1,t,allocate,0xg,8,0":                                "\"g\": invalid",
		header + "\n1,t,sync,0x10,8,0":                                   "cannot \"sync\"",
		header + "\n1,t,sync,0x10,0,0":                                   "cannot \"sync\"",
		header + "\n1,t,allocate,0x10,8":                                 "wrong number of fields",
		header + "\n":                                                    "no operation",
		header + "\n" + strings.Repeat("+", 300):                         "wrong number of fields",
		many:                                                             "more than 64 streams",
	} {
		_, err := Read(strings.NewReader(text), "")
		require.ErrorContains(t, err, want, "%q", text)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(header + "\n1,t,allocate,0x10,512,0\n1,t,allocate,0x20,1073741824,0x3\n1,t,free,0x10,512,0x1\n1,t,free,0x20,1073741824,0\n")
	f.Add(header + "\n1,t,allocate,(nil),0,0\n1,t,allocate failure,(nil),8,0\n1,t,free,0x10,8,0\n")
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := Read(strings.NewReader(text), "fuzz")
		if err != nil {
			return
		}
		require.NoError(t, check(tr))
		again, err := Read(strings.NewReader(written(tr)), "fuzz")
		require.NoError(t, err)
		require.Equal(t, tr, again)
		tr.Scale(gib)
		require.NoError(t, check(tr))
	})
}

func TestCheckRefuses(t *testing.T) {
	good := Generators[0].Make(1, gib)
	for name, spoil := range map[string]func(t *Trace){
		"freed twice":   func(t *Trace) { t.Ops = append(t.Ops, Op{Kind: Free, Block: 0}) },
		"never freed":   func(t *Trace) { t.Ops = t.Ops[:len(t.Ops)-2] },
		"kind":          func(t *Trace) { t.Ops = append(t.Ops, Op{}) },
		"streams":       func(t *Trace) { t.Streams = 1 },
		"blocks":        func(t *Trace) { t.Blocks++ },
		"out of order":  func(t *Trace) { t.Ops = append(t.Ops, Op{Kind: Alloc, Block: 1 << 30, Size: 1}) },
		"size overflow": func(t *Trace) { t.Ops = append(t.Ops, Op{Kind: Alloc, Block: uint32(t.Blocks), Size: 1 << 60}) },
	} {
		tr := *good
		tr.Ops = append([]Op(nil), good.Ops...)
		spoil(&tr)
		require.Error(t, check(&tr), name)
	}
}

// checker finds the first operation that cannot be.
type checker struct {
	live    []bool // of each block so far
	n       int    // of them are live
	bytes   uint64 // so far, of all blocks
	streams int
}

func (c *checker) op(o Op) error {
	if o.Stream >= maxStreams {
		return fmt.Errorf("stream %d of %d", o.Stream, maxStreams)
	}
	c.streams = max(c.streams, int(o.Stream)+1)
	switch o.Kind {
	case Alloc:
		if o.Size == 0 || o.Size > maxSize {
			return fmt.Errorf("block of %d bytes", o.Size)
		}
		if int(o.Block) != len(c.live) {
			return fmt.Errorf("block %d comes after %d", o.Block, len(c.live))
		}
		sum, carry := bits.Add64(c.bytes, o.Size, 0)
		if carry != 0 {
			return errors.New("the sizes overflow")
		}
		c.bytes = sum
		c.live = append(c.live, true)
		c.n++
	case Free:
		if int(o.Block) >= len(c.live) || !c.live[o.Block] {
			return fmt.Errorf("block %d is not allocated", o.Block)
		}
		c.live[o.Block] = false
		c.n--
	case Sync:
	default:
		return fmt.Errorf("kind %d", o.Kind)
	}
	return nil
}

// end is whether everything was freed.
func (c *checker) end() error {
	if c.n > 0 {
		return fmt.Errorf("%d blocks are never freed", c.n)
	}
	return nil
}

// check returns nil for a trace that frees every block exactly once.
func check(t *Trace) error {
	var c checker
	for i, o := range t.Ops {
		if err := c.op(o); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	if err := c.end(); err != nil {
		return err
	}
	if c.streams > t.Streams || len(c.live) != t.Blocks {
		return fmt.Errorf("%d streams and %d blocks, not %d and %d", c.streams, len(c.live), t.Streams, t.Blocks)
	}
	return nil
}
