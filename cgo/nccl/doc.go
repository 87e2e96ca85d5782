// Package nccl is NCCL, the library that moves data between GPUs of one host and of many:
// libnccl.so.2, loaded when it is first opened. Joining a group does not block: the caller asks
// until it is done. Other calls may wait for other members. All of it can be aborted.
//
// It is what package collective is made of. It checks nothing that NCCL checks itself, and
// keeps no memory from being unmapped.
package nccl

// Files:
//
//	symbols.h    NCCL's types, and every symbol that is called
//	shims.h, .c  one C function for each call
//	nccl.go      ID, Kind, Reduction, Operation, Call, Status
//	load.go      finding the library; Library; errors
//	comm.go      Comm: joining, running calls, registering, ending
//	stub.go      builds without cgo, and systems other than Linux
