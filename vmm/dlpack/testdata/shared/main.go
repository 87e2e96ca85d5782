// Package main is a table of rows that grows, as a C library for a program that has it in its own process.
package main

// #include <stdint.h>
import "C"

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/dlpack"
)

const width = 8

var (
	dev  *vmm.Device
	rows *growable.Rows[float32]
)

// status is 0 for nil, and else -1, with the error on standard error.
func status(err error) C.int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return -1
}

//export table_open
func table_open(device *C.char) C.int {
	var err error
	if dev, err = vmm.Open(C.GoString(device)); err == nil {
		rows, err = growable.NewRows[float32](dev, width, growable.RowsOptions{})
	}
	return status(err)
}

// table_append appends n rows whose elements count on.
//
//export table_append
func table_append(n C.int64_t) C.int {
	first := rows.Len() * width
	p := make([]float32, width*int(n))
	for i := range p {
		p[i] = float32(first + i)
	}
	return status(rows.Append(p...))
}

// table_export is a tensor of the first n rows; stream 0 is None.
//
//export table_export
func table_export(n C.int64_t, unversioned C.int, stream C.int64_t) unsafe.Pointer {
	o := dlpack.Options{Unversioned: unversioned != 0, Stream: int64(stream)}
	t, err := dlpack.Export(rows, int(n), o)
	var p unsafe.Pointer
	if err == nil {
		p, err = t.HandOver()
	}
	status(err)
	return p
}

//export table_first
func table_first(row C.int64_t) C.float {
	var p [width]float32
	if _, err := rows.ReadAt(p[:], int(row)); err != nil {
		return C.float(status(err))
	}
	return C.float(p[0])
}

//export table_close
func table_close() C.int {
	err := rows.Close()
	if err == nil {
		err = dev.Close()
	}
	return status(err)
}

func main() {}
