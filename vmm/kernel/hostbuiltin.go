package kernel

import (
	"fmt"
	"math"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// hostBuiltins is the kernels of device/builtin.cu as Go functions, by their names. They
// have the same parameters and do the same. Each does the work of a whole grid alone, so
// nothing in them is atomic.
func hostBuiltins() map[string]any {
	m := map[string]any{
		"cuvmm_fill_pattern":   hostFillPattern,
		"cuvmm_verify_pattern": hostVerifyPattern,

		"cuvmm_iota_u32": hostIota[uint32],
		"cuvmm_iota_u64": hostIota[uint64],
		"cuvmm_iota_f32": hostIotaFloat[float32],
		"cuvmm_iota_f64": hostIotaFloat[float64],

		"cuvmm_sum_i32": hostSum[int32, int64],
		"cuvmm_sum_u32": hostSum[uint32, uint64],
		"cuvmm_sum_i64": hostSum[int64, int64],
		"cuvmm_sum_u64": hostSum[uint64, uint64],
		"cuvmm_sum_f32": hostSum[float32, float64],
		"cuvmm_sum_f64": hostSum[float64, float64],

		"cuvmm_compact_mask_32": hostCompactMask[uint32],
		"cuvmm_compact_mask_64": hostCompactMask[uint64],

		"cuvmm_copy":        hostCopy,
		"cuvmm_wait_clock":  hostWait,
		"cuvmm_delay_store": hostDelayStore,
	}
	addHostOrdered[int32](m)
	addHostOrdered[uint32](m)
	addHostOrdered[int64](m)
	addHostOrdered[uint64](m)
	addHostOrdered[float32](m)
	addHostOrdered[float64](m)
	for _, unit := range []uint64{1, 4, 8, 16} {
		m[fmt.Sprintf("cuvmm_gather_%d_u32", unit)] = hostMoveRows[uint32](unit, false)
		m[fmt.Sprintf("cuvmm_gather_%d_u64", unit)] = hostMoveRows[uint64](unit, false)
		m[fmt.Sprintf("cuvmm_scatter_%d_u32", unit)] = hostMoveRows[uint32](unit, true)
		m[fmt.Sprintf("cuvmm_scatter_%d_u64", unit)] = hostMoveRows[uint64](unit, true)
	}
	return m
}

// addHostOrdered adds what compares elements of T.
func addHostOrdered[T Number](m map[string]any) {
	m["cuvmm_min_"+typeName[T]()] = hostMin[T]
	m["cuvmm_max_"+typeName[T]()] = hostMax[T]
	m["cuvmm_compact_"+typeName[T]()] = hostCompact[T]
}

func hostFillPattern(p vmm.Ptr, bytes, seed uint64) { Pattern{seed}.Fill(Slice[byte](p, bytes)) }

// hostVerifyPattern leaves the offset of the first byte that differs in the first word of
// result, if it is less than what stands there, and adds their number to the second.
func hostVerifyPattern(p vmm.Ptr, bytes, seed uint64, result vmm.Ptr) {
	bad, first := Pattern{seed}.differ(Slice[byte](p, bytes))
	r := Slice[uint64](result, 2)
	if bad > 0 {
		r[0] = min(r[0], first)
	}
	r[1] += bad
}

func hostIota[T uint32 | uint64](p vmm.Ptr, n uint64, start, step T) {
	for i := range Slice[T](p, n) {
		Slice[T](p, n)[i] = start + T(i)*step
	}
}

// hostIotaFloat rounds once in double precision, as the device does.
func hostIotaFloat[T float32 | float64](p vmm.Ptr, n uint64, start, step T) {
	for i := range Slice[T](p, n) {
		Slice[T](p, n)[i] = T(math.FMA(float64(i), float64(step), float64(start)))
	}
}

// Reductions need no partial results and no ticket: all elements are added here, in order.

func hostSum[T, S Number](p vmm.Ptr, n uint64, _, _, result vmm.Ptr) {
	var sum S
	for _, v := range Slice[T](p, n) {
		sum += S(v)
	}
	Slice[S](result, 1)[0] = sum
}

// hostMin is NaN if any element is: no comparison with a NaN is true, so it stays.
func hostMin[T Number](p vmm.Ptr, n uint64, _, _, result vmm.Ptr) {
	all := Slice[T](p, n)
	least := all[0]
	for _, v := range all[1:] {
		if v < least || isNaN(v) {
			least = v
		}
	}
	Slice[T](result, 1)[0] = least
}

// hostMax is as hostMin.
func hostMax[T Number](p vmm.Ptr, n uint64, _, _, result vmm.Ptr) {
	all := Slice[T](p, n)
	greatest := all[0]
	for _, v := range all[1:] {
		if v > greatest || isNaN(v) {
			greatest = v
		}
	}
	Slice[T](result, 1)[0] = greatest
}

func isNaN[T Number](v T) bool { return v != v }

// compared is how v compares with value.
func compared[T Number](v, value T) Compare {
	switch {
	case v < value:
		return Less
	case v == value:
		return Equal
	case v > value:
		return Greater
	}
	return Unordered
}

func hostCompact[T Number](c *DeviceCursor, src vmm.Ptr, n uint64, value T, keep uint32) {
	all := Slice[T](src, n)
	hostCompactTiles(c, all, func(i uint64) bool { return compared(all[i], value)&Compare(keep) != 0 })
}

func hostCompactMask[T uint32 | uint64](c *DeviceCursor, src, mask vmm.Ptr, n uint64) {
	flags := Slice[byte](mask, n)
	hostCompactTiles(c, Slice[T](src, n), func(i uint64) bool { return flags[i] != 0 })
}

// hostCompactTiles appends the elements that are kept. As on the device a work item is a
// tile, of which all that is kept fits or nothing is written.
func hostCompactTiles[T Number](c *DeviceCursor, all []T, keep func(uint64) bool) {
	tile, n := compactTile(sizeOf[T]()), uint64(len(all))
	kept := make([]T, 0, tile)
	for i := range c.ItemCount((n + tile - 1) / tile) {
		item := c.Item(i)
		kept = kept[:0]
		for j := item * tile; j < min(n, (item+1)*tile); j++ {
			if keep(j) {
				kept = append(kept, all[j])
			}
		}
		if !AppendTo(c, kept...) {
			c.NoteUnfinished(item)
		}
	}
}

// hostMoveRows gathers rows of row units each, or scatters them: idx[i] of src to i of dst,
// or i of src to idx[i] of dst. Pitches are in units too. An index that is not below rows is
// left out and counted in *bad.
func hostMoveRows[I uint32 | uint64](unit uint64, scatter bool) func(dst, src, idx vmm.Ptr, n, row, dstPitch, srcPitch, rows uint64, bad vmm.Ptr) {
	return func(dst, src, idx vmm.Ptr, n, row, dstPitch, srcPitch, rows uint64, bad vmm.Ptr) {
		for i, j := range Slice[I](idx, n) {
			if uint64(j) >= rows {
				Slice[uint64](bad, 1)[0]++
				continue
			}
			to, from := uint64(i), uint64(j)
			if scatter {
				to, from = from, to
			}
			copy(Slice[byte](dst+vmm.Ptr(to*dstPitch*unit), row*unit), Slice[byte](src+vmm.Ptr(from*srcPitch*unit), row*unit))
		}
	}
}

func hostCopy(dst, src vmm.Ptr, bytes uint64) { copy(Slice[byte](dst, bytes), Slice[byte](src, bytes)) }

// hostWait runs for so many nanoseconds.
func hostWait(ns uint64) { <-time.After(time.Duration(min(ns, math.MaxInt64))) }

func hostDelayStore(ns uint64, p vmm.Ptr, v uint32) {
	hostWait(ns)
	Slice[uint32](p, 1)[0] = v
}
