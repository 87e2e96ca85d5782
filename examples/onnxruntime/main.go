// Command onnxruntime searches a table that grows in place, by an ONNX model that reads all its rows
// without a copy. It is a module of its own. In its directory:
//
//	go run .
//	go test .
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
)

const width = 64

func main() {
	if err := start(context.Background()); err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(run(os.Stdout), ort.DestroyEnvironment()); err != nil {
		log.Fatal(err)
	}
}

// start gets ONNX Runtime and loads it.
func start(ctx context.Context) error {
	path, err := library(ctx)
	if err != nil {
		return err
	}
	return load(path)
}

func load(path string) error {
	// Since 1.29 ONNX Runtime sends telemetry, on Linux too, unless this is set before it starts.
	if err := os.Setenv("ORT_DISABLE_TELEMETRY", "1"); err != nil {
		return err
	}
	ort.SetSharedLibraryPath(path)
	return ort.InitializeEnvironment()
}

func run(w io.Writer) (err error) {
	dev, err := vmm.Open("host")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	rows, err := growable.NewRows[float32](dev, width, growable.RowsOptions{MaxRows: 1 << 20})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	search, err := NewSearch(rows)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, search.Close()) }()

	random := rand.New(rand.NewPCG(1, 2))
	query, first := numbers(random, 1), rows.Ptr()
	for range 4 {
		if err := rows.Append(numbers(random, 25_000)...); err != nil {
			return err
		}
		indices, scores, err := search.Top(query, 1)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%6d rows, the same address: %t, best: row %d, product %g\n",
			rows.Len(), rows.Ptr() == first, indices[0], scores[0])
	}
	return nil
}

// numbers returns n rows of small whole numbers, whose products float32 has exactly.
func numbers(random *rand.Rand, n int) []float32 {
	all := make([]float32, n*width)
	for i := range all {
		all[i] = float32(random.IntN(201) - 100)
	}
	return all
}
