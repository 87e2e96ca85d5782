package main

import (
	"errors"

	"github.com/gomlx/go-xla/pkg/pjrt"
	"github.com/gomlx/go-xla/pkg/stablehlo"
	"github.com/gomlx/go-xla/pkg/types/dtypes"
	"github.com/gomlx/go-xla/pkg/types/shapes"

	"github.com/cuvmm/cuvmm/growable"
)

// products multiplies all rows with a query, where they are.
func products(client *pjrt.Client, rows *growable.Rows[float32], query []float32) (_ []float32, err error) {
	n := rows.Len()
	compiled, err := compile(client, n, rows.Width())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, compiled.Destroy()) }()
	table, release, err := view(client, rows, n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	column, err := pjrt.ArrayToBuffer(client, query, len(query), 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, column.Destroy()) }()

	// Done waits for the program. Nothing is donated, so the program does not write to the rows.
	out, err := compiled.Execute(table, column).DonateNone().Done()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, out[0].Destroy()) }()
	all, _, err := pjrt.BufferToArray[float32](out[0])
	return all, err
}

// view is a buffer of PJRT that is the first n rows, where they are. Until release, every call that
// would drop or unmap one of them returns vmm.ErrBusy. The rows can grow meanwhile. release must
// come after the last program that reads the buffer.
func view(client *pjrt.Client, rows *growable.Rows[float32], n int) (_ *pjrt.Buffer, release func() error, err error) {
	drop, err := rows.Range().Hold(0, uint64(n)*uint64(rows.Pitch()))
	if err != nil {
		return nil, nil, err
	}
	buffer, err := client.CreateViewOfDeviceBuffer(pointer(rows.Ptr()), dtypes.Float32, []int{n, rows.Width()})
	if err != nil {
		drop()
		return nil, nil, err
	}
	return buffer, func() error {
		defer drop()
		return buffer.Destroy()
	}, nil
}

// compile makes a program for n rows. XLA's shapes are fixed, so each length has a program of its own.
func compile(client *pjrt.Client, n, width int) (*pjrt.LoadedExecutable, error) {
	text, err := program(n, width)
	if err != nil {
		return nil, err
	}
	return client.Compile().WithStableHLO(text).Done()
}

// program is the product of n rows and a query, as StableHLO.
func program(n, width int) ([]byte, error) {
	builder := stablehlo.New("products")
	f := builder.Main()
	rows, err := f.NamedInput("rows", shapes.Make(dtypes.Float32, n, width))
	if err != nil {
		return nil, err
	}
	query, err := f.NamedInput("query", shapes.Make(dtypes.Float32, width, 1))
	if err != nil {
		return nil, err
	}
	dot, err := stablehlo.Dot(rows, query)
	if err != nil {
		return nil, err
	}
	if err := f.Return(dot); err != nil {
		return nil, err
	}
	return builder.Build()
}
