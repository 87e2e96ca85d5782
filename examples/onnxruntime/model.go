package main

import (
	"encoding/binary"
	"slices"
)

// ONNX's numbers of element types.
const (
	floatType = 1
	int64Type = 7
)

// model is an ONNX model, encoded as the protobuf of onnx.proto:
//
//	scores, indices = TopK(MatMul(rows, query), k)
//
// rows has the shape [n, width] for any n, query [width] and k [1].
func model(width int) []byte {
	graph := slices.Concat(
		node("MatMul", []string{"rows", "query"}, []string{"products"}),
		node("TopK", []string{"products", "k"}, []string{"scores", "indices"}),
		field(2, []byte("search")), // name
		value(11, "rows", floatType, anySize("n"), size(width)),
		value(11, "query", floatType, size(width)),
		value(11, "k", int64Type, size(1)),
		value(12, "scores", floatType, anySize("k")),
		value(12, "indices", int64Type, anySize("k")),
	)
	return slices.Concat(
		number(1, 8), // ir_version
		field(7, graph),
		field(8, number(2, 17)), // opset_import: version 17 of the operators
	)
}

func node(op string, inputs, outputs []string) []byte {
	var b []byte
	for _, name := range inputs {
		b = append(b, field(1, []byte(name))...)
	}
	for _, name := range outputs {
		b = append(b, field(2, []byte(name))...)
	}
	return field(1, append(b, field(4, []byte(op))...))
}

// value is an input of the graph if id is 11, and an output if it is 12.
func value(id int, name string, elem uint64, dims ...[]byte) []byte {
	tensor := append(number(1, elem), field(2, slices.Concat(dims...))...)
	return field(id, append(field(1, []byte(name)), field(2, field(1, tensor))...))
}

func size(n int) []byte          { return field(1, number(1, uint64(n))) }
func anySize(name string) []byte { return field(1, field(2, []byte(name))) }

// field is a protobuf field that has a length: a text or a message.
func field(id int, b []byte) []byte {
	return append(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(id)<<3|2), uint64(len(b))), b...)
}

func number(id int, n uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(id)<<3), n)
}
