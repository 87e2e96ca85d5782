// Package hostengine is an engine for groups whose members are goroutines of one process,
// each with a device of the host driver. It is for tests, and stricter than NCCL: members that
// disagree, or wait for each other for ever, get an error at once.
//
// Each Run queues one kernel, a Go function. When it runs, it joins the transfers of its
// calls: the k-th collective operation of each member is one transfer, and so are the k-th
// Send from a to b and the k-th Recv of b from a. The kernel that comes last does the work
// of all; the others wait for it. As with NCCL, what one member queues runs one after the
// other, on whatever streams.
//
//	what happens                                 Err of the others
//	a member is aborted                          nccl.ErrPeerGone, and its rank
//	a member has closed and others wait for it   nccl.ErrPeerGone, and its rank
//	members disagree                             nccl.ErrFailed, and both calls
//	members wait for each other                  nccl.ErrFailed, and both calls
//
// Kernels that cannot be done wait until their member is aborted: if they ended, the stream
// would look as if the calls had been made. With Options.Silent the first two are not reported,
// as with NCCL over NVLink.
//
// Lock order: World.mu alone. No call of a driver is made while it is held.
package hostengine

// Files:
//
//	world.go     World: what the members share; what is waited for, and waits that never end
//	worlds.go    Worlds: a World for each group of this process
//	member.go    Member: one member's calls
//	transfer.go  the operations, and members that disagree on one
//	reduce.go    reductions of every kind of element
//	register.go  registrations and windows
