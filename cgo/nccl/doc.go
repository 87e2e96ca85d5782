// Package nccl is NCCL, the library that moves data between GPUs of one host and of many:
// libnccl.so.2, loaded when it is first opened. Joining a group does not block: the caller asks
// until it is done. Other calls may wait for other members. All of it can be aborted.
//
// It is what package collective is made of. It checks nothing that NCCL checks itself, and
// keeps no memory from being unmapped.
package nccl
