// Package wire is what an owner of shared memory and its readers say to each
// other: frames, the connection that carries them with their file descriptors,
// and the state that a reader holds the owner to.
//
// A frame is one packet of a SOCK_SEQPACKET socket: a header of [HeaderSize]
// bytes, a payload, and fds beside it. All integers are little-endian, every
// reserved byte is zero, and a payload is exactly as long as its counts say. A
// decoder allocates no more than in proportion to its input and answers
// anything else with a [ProtocolError], after which the connection is closed.
//
// Both sides send HELLO at once and read the other's first. A request carries a
// number that its answers repeat; an event carries zero.
//
//	request                              answers
//	LIST                                 LISTED
//	STAT                                 OBJECT
//	ATTACH                               OBJECT with the control page, then CHUNKS
//	RESYNC                               CHUNKS
//	DETACH                               DONE
//	ACK                                  none
//	RELEASE, CREATE, SEAL, DELETE, WAIT  kept for a store
//
// CHUNKS, PUBLISH, RETIRE, SEALED, DELETED and CLOSING are the owner's events,
// and ERROR is either.
package wire
