package nccl

import (
	"errors"
	"fmt"
)

// ID is a group's identity, an ncclUniqueId: made by one member and sent to all others.
type ID [128]byte

// Kind is a kind of element, an ncclDataType_t.
type Kind uint8

// Kinds of element, with NCCL's numbers.
const (
	Int8 Kind = iota
	Uint8
	Int32
	Uint32
	Int64
	Uint64
	Float16
	Float32
	Float64
	BFloat16
	Float8E4M3 // from NCCL 2.24 on
	Float8E5M2 // from NCCL 2.24 on
	kinds
)

// kindTable has each kind's name and the bytes of an element.
var kindTable = [kinds]struct {
	name string
	size uint64
}{
	Int8: {"int8", 1}, Uint8: {"uint8", 1}, Int32: {"int32", 4}, Uint32: {"uint32", 4}, Int64: {"int64", 8}, Uint64: {"uint64", 8},
	Float16: {"float16", 2}, Float32: {"float32", 4}, Float64: {"float64", 8}, BFloat16: {"bfloat16", 2},
	Float8E4M3: {"float8e4m3", 1}, Float8E5M2: {"float8e5m2", 1},
}

func (k Kind) String() string {
	if k < kinds {
		return kindTable[k].name
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Size is an element's bytes; 0 for no kind.
func (k Kind) Size() uint64 {
	if k < kinds {
		return kindTable[k].size
	}
	return 0
}

// Reduction is what becomes of elements at the same place, an ncclRedOp_t.
type Reduction uint8

// Reductions, with NCCL's numbers.
const (
	Sum Reduction = iota
	Product
	Max
	Min
	Mean // the sum divided by the number of members; for integers it is rounded towards zero
	reductions
)

func (r Reduction) String() string {
	if r < reductions {
		return [reductions]string{"sum", "product", "max", "min", "mean"}[r]
	}
	return fmt.Sprintf("reduction(%d)", uint8(r))
}

// Operation is one of NCCL's.
type Operation uint8

// Operations.
const (
	AllReduce Operation = iota
	Reduce
	Broadcast
	AllGather
	ReduceScatter
	Send
	Recv
	operations
)

func (o Operation) String() string {
	if o < operations {
		return [operations]string{"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter", "Send", "Recv"}[o]
	}
	return fmt.Sprintf("operation(%d)", uint8(o))
}

// Call is an operation with its arguments, which are NCCL's.
type Call struct {
	Operation Operation
	Kind      Kind
	Reduction Reduction
	Peer      int    // the root, or the other side of Send and Recv
	Src, Dst  uint64 // addresses; Send has no Dst and Recv no Src
	Count     uint64 // elements: sendcount of AllGather, recvcount of ReduceScatter
}

// Status is NCCL's own error code, an ncclResult_t. It is found inside the *driver.CallError
// of a call that failed, with errors.As.
type Status int

// Error is NCCL's number. The error of a call has NCCL's text too.
func (s Status) Error() string { return fmt.Sprintf("NCCL error %d", int(s)) }

var (
	// ErrInProgress is for a Comm that not all members have joined yet: call Comm.Progress again.
	ErrInProgress = errors.New("in progress")
	// ErrPeerGone is for a member that has ended, or that cannot be reached any more.
	ErrPeerGone = errors.New("a member of the group is gone")
	// ErrFailed is for a failure of NCCL's or of the system's. The communicator cannot be used
	// any more.
	ErrFailed = errors.New("the communication failed")
)
