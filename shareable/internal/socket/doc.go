// Package socket has the socket of a server: its path, who may connect to it, and the lock
// that decides which server has it. It knows no frame.
package socket

// Files:
//
//	socket.go          Options; where a socket of a name is; connecting
//	listener_linux.go  Listen: its lock file, mode and group; a listener that another process had
//	kept_linux.go      Kept: a listener that a keeper holds for the servers it starts
//	other.go           systems other than Linux
