// Package dlpack exchanges memory with PyTorch, CuPy, JAX, NumPy and cuVS as DLPack tensors, without a copy.
//
// An example: the first 1000 rows of a table that goes on growing, for a C library.
//
//	rows, err := growable.NewRows[float32](dev, 768, growable.RowsOptions{})
//	...
//	t, err := dlpack.Export(rows, 1000, dlpack.Options{})
//	p, err := t.HandOver() // a DLManagedTensorVersioned
//	C.search((*C.DLManagedTensorVersioned)(p)) // calls p's deleter when it is done
package dlpack

// Files:
//
//	dtype.go           DType
//	export.go          Options, Export
//	order.go           the consumer's stream waits
//	release.go         deleters, and the goroutine that drops holds; Tensor.Close
//	tensor_unsafe.go   Tensor.HandOver
//	import.go          Foreign
//	import_unsafe.go   FromDLPack, FromUnversioned; Foreign.Bytes, Slice
