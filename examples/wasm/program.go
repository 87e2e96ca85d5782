package main

import "encoding/binary"

// Flags of a WebAssembly memory.
const (
	hasMax = 1
	shared = 2
)

// program is a WebAssembly module whose memory has from min to max pages:
//
//	(module
//	  (memory (export "memory") $min $max)
//	  (func (export "grow") (result i32) (local $a i32)
//	    (loop $page
//	      (loop $word ;; each word of a new page is zero; it gets its address
//	        (if (i64.ne (i64.load (local.get $a)) (i64.const 0)) (then (unreachable)))
//	        (i64.store (local.get $a) (i64.extend_i32_u (local.get $a)))
//	        (local.tee $a (i32.add (local.get $a) (i32.const 8)))
//	        (br_if $word (i32.and (i32.const 65535))))
//	      (br_if $page (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
//	    (loop $word ;; each word of all pages, backwards, still has its address
//	      (local.set $a (i32.sub (local.get $a) (i32.const 8)))
//	      (if (i64.ne (i64.load (local.get $a)) (i64.extend_i32_u (local.get $a))) (then (unreachable)))
//	      (br_if $word (local.get $a)))
//	    (memory.size)))
func program(flags byte, min, max uint32) []byte {
	limits := binary.AppendUvarint([]byte{1, flags}, uint64(min))
	if flags&hasMax != 0 {
		limits = binary.AppendUvarint(limits, uint64(max))
	}
	code := []byte{
		1, 1, 0x7f, // one local, $a
		0x03, 0x40, // loop $page
		0x03, 0x40, // loop $word
		0x20, 0, 0x29, 3, 0, 0x42, 0, 0x52, 0x04, 0x40, 0x00, 0x0b, // if load $a != 0, unreachable
		0x20, 0, 0x20, 0, 0xad, 0x37, 3, 0, // store $a at $a
		0x20, 0, 0x41, 8, 0x6a, 0x22, 0, // $a += 8
		0x41, 0xff, 0xff, 3, 0x71, 0x0d, 0, 0x0b, // to $word unless a page ends
		0x41, 1, 0x40, 0, 0x41, 0x7f, 0x47, 0x0d, 0, 0x0b, // to $page unless memory.grow returns -1
		0x03, 0x40, // loop $word
		0x20, 0, 0x41, 8, 0x6b, 0x21, 0, // $a -= 8
		0x20, 0, 0x29, 3, 0, 0x20, 0, 0xad, 0x52, 0x04, 0x40, 0x00, 0x0b, // if load $a != $a, unreachable
		0x20, 0, 0x0d, 0, 0x0b, // to $word unless $a is 0
		0x3f, 0, 0x0b, // memory.size
	}
	module := []byte("\x00asm\x01\x00\x00\x00")
	for _, section := range []struct {
		id   byte
		body []byte
	}{
		{1, []byte{1, 0x60, 0, 1, 0x7f}}, // a type: no parameters, an i32
		{3, []byte{1, 0}},                // a function of that type
		{5, limits},
		{7, []byte("\x02\x06memory\x02\x00\x04grow\x00\x00")}, // exports
		{10, append(binary.AppendUvarint([]byte{1}, uint64(len(code))), code...)},
	} {
		module = append(binary.AppendUvarint(append(module, section.id), uint64(len(section.body))), section.body...)
	}
	return module
}
