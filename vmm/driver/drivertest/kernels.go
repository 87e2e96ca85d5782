package drivertest

import (
	"encoding/binary"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// The kernels of kernelsPTX.
const (
	addWords = "add_u32"  // (words, n, v): adds v to each of the n words
	storeOne = "store_at" // (word, v): stores v in one word
)

// kernelsPTX is what the rules launch on a GPU. Any driver since CUDA 11.0 compiles it
// for any GPU since sm_52. The comments in it are for a fake driver that cannot parse PTX.
const kernelsPTX = `.version 7.0
.target sm_52
.address_size 64
// params add_u32 8 4 4
// params store_at 8 4

.visible .entry add_u32(
	.param .u64 add_u32_words,
	.param .u32 add_u32_n,
	.param .u32 add_u32_v
)
{
	.reg .pred %p<2>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<4>;

	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ntid.x;
	mov.u32 %r3, %tid.x;
	mad.lo.u32 %r4, %r1, %r2, %r3;
	ld.param.u32 %r5, [add_u32_n];
	setp.ge.u32 %p1, %r4, %r5;
	@%p1 bra ADD_END;
	ld.param.u64 %rd1, [add_u32_words];
	mul.wide.u32 %rd2, %r4, 4;
	add.u64 %rd3, %rd1, %rd2;
	ld.param.u32 %r6, [add_u32_v];
	ld.u32 %r7, [%rd3];
	add.u32 %r8, %r7, %r6;
	st.u32 [%rd3], %r8;
ADD_END:
	ret;
}

.visible .entry store_at(
	.param .u64 store_at_word,
	.param .u32 store_at_v
)
{
	.reg .pred %p<2>;
	.reg .b32 %r<5>;
	.reg .b64 %rd<2>;

	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %tid.x;
	or.b32 %r3, %r1, %r2;
	setp.ne.u32 %p1, %r3, 0;
	@%p1 bra STORE_END;
	ld.param.u64 %rd1, [store_at_word];
	ld.param.u32 %r4, [store_at_v];
	st.u32 [%rd1], %r4;
STORE_END:
	ret;
}
`

// badPTX is text that a compiler refuses.
const badPTX = `.version 7.0
.target sm_52
.address_size 64
// fails 218 no such instruction
.visible .entry bad()
{
	no_such_instruction;
}
`

// kernels is code that does the same on a GPU and on the host.
func kernels() driver.Code {
	return driver.Code{
		Image: []byte(kernelsPTX),
		Host: map[string]driver.HostKernel{
			addWords: {Params: addParams(), Run: func(l *driver.Launch) error {
				n := min(uint64(l.Grid.X)*uint64(l.Block.X), uint64(word32(l.Args[8:])))
				addTo(driver.Ptr(word64(l.Args)), n, word32(l.Args[12:]))
				return nil
			}},
			storeOne: {Params: storeParams(), Run: func(l *driver.Launch) error {
				storeTo(driver.Ptr(word64(l.Args)), word32(l.Args[8:]))
				return nil
			}},
		},
	}
}

func addParams() []driver.Param {
	return []driver.Param{{Offset: 0, Size: 8}, {Offset: 8, Size: 4}, {Offset: 12, Size: 4}}
}
func storeParams() []driver.Param { return []driver.Param{{Offset: 0, Size: 8}, {Offset: 8, Size: 4}} }

func word32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func word64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// threads is the size of a block in these launches. It divides no number of words that
// the rules use.
const threads = 96

// addLaunch adds v to n words at p.
func addLaunch(p driver.Ptr, n, v uint32) *driver.Launch {
	args := binary.LittleEndian.AppendUint64(nil, uint64(p))
	args = binary.LittleEndian.AppendUint32(args, n)
	return &driver.Launch{
		Grid:   driver.Dim{X: (n + threads - 1) / threads},
		Block:  driver.Dim{X: threads},
		Args:   binary.LittleEndian.AppendUint32(args, v),
		Memory: []driver.Span{{Addr: p, Size: 4 * uint64(n), Access: driver.AccessReadWrite}},
	}
}

// storeLaunch stores v at p, whatever is there: it names no memory.
func storeLaunch(p driver.Ptr, v uint32) *driver.Launch {
	args := binary.LittleEndian.AppendUint64(nil, uint64(p))
	return &driver.Launch{Args: binary.LittleEndian.AppendUint32(args, v)}
}

// kernel loads the kernels on a device and finds one.
func (c *check) kernel(d driver.Device, name string) driver.Function {
	c.Helper()
	i := as[driver.Launcher](c, d)
	m, log, err := i.LoadModule(kernels())
	c.optional(err, "Launcher")
	c.held.modules = append(c.held.modules, owned[driver.Module]{d, m})
	if log != "" {
		c.Logf("the log of the kernels:\n%s", log)
	}
	return valueOf(i.Function(m, name)).must(c, "find %s", name)
}

func (c *check) launch(d driver.Device, f driver.Function, l *driver.Launch, s driver.Stream) {
	c.Helper()
	c.must(c.prompt("launch", func() error { return as[driver.Launcher](c, d).Launch(f, l, s) }), "launch")
}

// words checks that n words from p on are all v.
func (c *check) words(d driver.Device, p driver.Ptr, n, v uint32) {
	c.Helper()
	got := make([]byte, 4*n)
	c.must(c.prompt("read", func() error { return d.CopyOut(got, p) }), "read %d words at %v", n, p)
	for i := range n {
		if x := word32(got[4*i:]); x != v {
			c.Fatalf("word %d at %v is %#x, want %#x", i, p, x, v)
		}
	}
}
