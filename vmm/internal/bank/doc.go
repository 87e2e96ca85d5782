// Package bank manages the physical memory of a driver's devices: creation, the cache, the limit, and releases
// that the driver refused. When memory runs out, it decides which operation gets released memory. It knows no
// range: the caller hands in the function that releases unused memory of ranges.
package bank

// Files:
//
//	bank.go       Bank and Account; charging memory to the bounds; the cache; what is released when memory lacks
//	memory.go     Memory and its references; creating memory, or taking cached memory
//	bounds.go     the limit, the lease and what the system leaves; the error of the least one
//	lease.go      Lender: how a lease rises, and what is given when it is to fall
//	outside.go    memory that no Account has created, and pools of the driver's
//	turn.go       the turn of an operation that lacks memory; functions of OnPressure
