// Package wire is the protocol between an owner of shared memory and its readers:
// the frames, the connection that carries them with their file descriptors, and a
// Tracker with which a reader checks the owner.
//
// A frame is one packet of a SOCK_SEQPACKET socket: a header of [HeaderSize]
// bytes, a payload, and fds beside it. All integers are little-endian, every
// reserved byte is zero, and the length of a payload follows from its fields. What
// a decoder allocates is proportional to its input. For invalid input it returns a
// [ProtocolError], after which the connection is closed.
//
// Both sides send HELLO at once, and read the other's before anything else. A
// request carries a number that its reply repeats. An event, which is a frame that no
// request asked for, carries 0.
//
//	request                              reply
//	LIST                                 LISTED
//	STAT                                 OBJECT
//	ATTACH                               OBJECT with control page and wake socket, then CHUNKS
//	RESYNC                               CHUNKS
//	DETACH                               DONE
//	ACK                                  none
//	CREATE, LEASE                        OBJECT with the control page
//	GROW                                 CHUNKS
//	WAIT                                 OBJECT
//	QUERY, COUNT                         FOUND, COUNTERS
//	MAPPED, SEAL, RELEASE, DELETE        DONE
//	LINK, UNLINK, REPLACE, WATCH         DONE
//	WROTE, RESUME                        none
//	JOIN, ASK                            LENT
//	GAVE                                 none
//	LEAVE, TERMS                         DONE
//
// From CREATE on they are for a store, and ATTACH is followed by PAGE too if an object gets
// another writer. From JOIN on they are for a budget.
//
// CHUNKS, PUBLISH, RETIRE, SEALED, PAGE, DELETED, CLOSING, EVENT, LENT and DEMAND are events of the owner.
// ERROR is a reply or an event.
//
// docs/reference/protocol.md describes every field.
package wire

// Files:
//
//	limits.go        limits that both sides hold to, in bytes and in number
//	name.go          which names are valid; the name that every object of a store has
//	header.go        types of frames, their header, how many descriptors each has; ProtocolError
//	requests.go      a reader's requests, HELLO to ACK; LISTED; ERROR
//	events.go        what the owner tells its readers: CHUNKS to CLOSING
//	object.go        OBJECT, the reply to STAT, ATTACH, CREATE, LEASE, WAIT; layout, kinds of element
//	store.go         the other frames of a store and its writers; Info, an entry of FOUND
//	budget.go        the frames of a budget's members
//	codec.go         numbers and strings in a frame
//	conn.go          Conn: reading and writing frames
//	fd.go            FD: a descriptor that is closed once
//	tracker.go       Tracker: what a reader accepts from its owner, chunk by chunk
//	own.go           IsOwn: whether an id is this user's and no one else's
//	sys_linux.go     the calls of Linux behind a Conn: descriptors, who is at the other end
//	unread_linux.go  waiting for a frame without reading it; RefuseFDs
//	sys_other.go     systems other than Linux
