// Package store keeps named buffers of device memory for many processes: one makes a
// buffer and seals it, others get it by its name. The memory belongs to the store, so it
// outlives the process that wrote it.
//
// A [Server] owns the memory. It has no context on any device, so no fault can take the
// memory with it. It runs in a process of its own, cmd/vmmstored, or in the program. A
// [Client] makes objects and gets them, over a socket in both cases.
package store
