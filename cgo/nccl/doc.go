// Package nccl is NCCL, the library that moves data between GPUs of one host and of many:
// libnccl.so.2, loaded when it is first opened. All of it is non-blocking: what NCCL has
// begun is asked for until it is done, and can be aborted.
//
// It is what package collective is made of. It checks nothing that NCCL checks itself, and
// keeps no memory from being unmapped.
package nccl
