package hostengine

import (
	"encoding/binary"
	"math"

	"github.com/cuvmm/cuvmm/cgo/nccl"
)

// number is what elements are while they are reduced.
type number interface {
	int8 | uint8 | int32 | uint32 | int64 | uint64 | float32 | float64
}

// reduce sets each of dsts to the reduction of srcs, element by element, in the order of the
// ranks. A dst may be one of srcs. Elements of 16 bits and of 8 that are no integers are
// reduced as float32, and rounded once.
func reduce(dsts, srcs [][]byte, k nccl.Kind, red nccl.Reduction) {
	le := binary.LittleEndian
	switch k {
	case nccl.Int8:
		fold(dsts, srcs, red, 1, func(b []byte) int8 { return int8(b[0]) }, func(b []byte, x int8) { b[0] = byte(x) })
	case nccl.Uint8:
		fold(dsts, srcs, red, 1, func(b []byte) uint8 { return b[0] }, func(b []byte, x uint8) { b[0] = x })
	case nccl.Int32:
		fold(dsts, srcs, red, 4, func(b []byte) int32 { return int32(le.Uint32(b)) }, func(b []byte, x int32) { le.PutUint32(b, uint32(x)) })
	case nccl.Uint32:
		fold(dsts, srcs, red, 4, le.Uint32, le.PutUint32)
	case nccl.Int64:
		fold(dsts, srcs, red, 8, func(b []byte) int64 { return int64(le.Uint64(b)) }, func(b []byte, x int64) { le.PutUint64(b, uint64(x)) })
	case nccl.Uint64:
		fold(dsts, srcs, red, 8, le.Uint64, le.PutUint64)
	case nccl.Float32:
		fold(dsts, srcs, red, 4, func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) },
			func(b []byte, x float32) { le.PutUint32(b, math.Float32bits(x)) })
	case nccl.Float64:
		fold(dsts, srcs, red, 8, func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) },
			func(b []byte, x float64) { le.PutUint64(b, math.Float64bits(x)) })
	case nccl.Float16:
		fold16(dsts, srcs, red, float16)
	case nccl.BFloat16:
		fold16(dsts, srcs, red, bfloat16)
	case nccl.Float8E4M3:
		fold8(dsts, srcs, red, float8e4m3)
	case nccl.Float8E5M2:
		fold8(dsts, srcs, red, float8e5m2)
	}
}

func fold16(dsts, srcs [][]byte, red nccl.Reduction, f format) {
	le := binary.LittleEndian
	fold(dsts, srcs, red, 2, func(b []byte) float32 { return f.decode(le.Uint16(b)) }, func(b []byte, x float32) { le.PutUint16(b, f.encode(x)) })
}

func fold8(dsts, srcs [][]byte, red nccl.Reduction, f format) {
	fold(dsts, srcs, red, 1, func(b []byte) float32 { return f.decode(uint16(b[0])) }, func(b []byte, x float32) { b[0] = byte(f.encode(x)) })
}

// fold reduces elements of size bytes.
func fold[T number](dsts, srcs [][]byte, red nccl.Reduction, size int, load func([]byte) T, store func([]byte, T)) {
	for at := 0; at < len(srcs[0]); at += size {
		x := load(srcs[0][at:])
		for _, src := range srcs[1:] {
			y := load(src[at:])
			switch red {
			case nccl.Product:
				x *= y
			case nccl.Max:
				x = max(x, y)
			case nccl.Min:
				x = min(x, y)
			default:
				x += y
			}
		}
		if red == nccl.Mean {
			x /= T(len(srcs))
		}
		for _, dst := range dsts {
			store(dst[at:], x)
		}
	}
}

// format is a floating-point number in at most 16 bits: a sign, an exponent and a mantissa.
type format struct {
	exponent, mantissa int // bits
	// finite: all exponents are those of numbers, and only the greatest mantissa of the
	// greatest one is no number.
	finite bool
	// saturates: numbers that are too great become the greatest.
	saturates bool
}

// Formats of CUDA, whose elements of 8 bits saturate.
var (
	float16    = format{exponent: 5, mantissa: 10}
	bfloat16   = format{exponent: 8, mantissa: 7}
	float8e4m3 = format{exponent: 4, mantissa: 3, finite: true, saturates: true}
	float8e5m2 = format{exponent: 5, mantissa: 2, saturates: true}
)

func (f format) bias() int { return 1<<(f.exponent-1) - 1 }

// decode is the number of those bits.
func (f format) decode(bits uint16) float32 {
	mantissa := int(bits) & (1<<f.mantissa - 1)
	exponent := int(bits) >> f.mantissa & (1<<f.exponent - 1)
	last := 1<<f.exponent - 1
	var x float64
	switch {
	case exponent == last && f.finite && mantissa == 1<<f.mantissa-1, exponent == last && !f.finite && mantissa != 0:
		return float32(math.NaN())
	case exponent == last && !f.finite:
		x = math.Inf(1)
	case exponent == 0:
		x = math.Ldexp(float64(mantissa), 1-f.bias()-f.mantissa)
	default:
		x = math.Ldexp(float64(mantissa+1<<f.mantissa), exponent-f.bias()-f.mantissa)
	}
	if bits>>(f.exponent+f.mantissa)&1 == 1 {
		x = -x
	}
	return float32(x)
}

// encode is the nearest number's bits; of two that are as near, the one whose last bit is 0.
func (f format) encode(x float32) uint16 {
	infinity := uint16(1<<f.exponent-1) << f.mantissa
	nan := infinity | 1<<(f.mantissa-1)
	greatest := infinity - 1
	if f.finite {
		nan = infinity | (1<<f.mantissa - 1)
		greatest = nan - 1
	}
	sign := uint16(0)
	if math.Signbit(float64(x)) {
		sign = 1 << (f.exponent + f.mantissa)
	}
	if x != x {
		return sign | nan
	}
	// Numbers of one exponent are whole multiples of a unit, and their bits count them.
	a := math.Abs(float64(x))
	_, e := math.Frexp(a)
	exponent := max(e-1+f.bias(), 1)
	units := uint64(0)
	switch {
	case math.IsInf(a, 0) || exponent >= 1<<f.exponent:
		units = math.MaxUint64
	case a > 0:
		units = uint64(math.RoundToEven(math.Ldexp(a, f.bias()+f.mantissa-exponent)))
		units += uint64(exponent-1) << f.mantissa
	}
	switch {
	case units <= uint64(greatest):
		return sign | uint16(units)
	case f.saturates:
		return sign | greatest
	}
	return sign | infinity
}
